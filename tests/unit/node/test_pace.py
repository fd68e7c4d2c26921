"""What a node measures of its passes over a feed, by a clock that the test turns."""

import pytest

from tensorflowonspark.messages import RowSource
from tensorflowonspark.node import meter as meter_module
from tensorflowonspark.node.feed import pace
from tensorflowonspark.node.feed.pace import measuring
from tensorflowonspark.node.meter import TrainingMeter


class Clock:
    """In place of the module `time`: seconds pass only where the test says so."""

    def __init__(self):
        self.now = self.used = 0.0

    def monotonic(self):
        return self.now

    def process_time(self):
        return self.used

    def sleep(self, _seconds):
        raise SystemExit  # no thread reports here

    def pass_by(self, seconds, cores=0.0):
        self.now += seconds
        self.used += cores * seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    monkeypatch.setattr(meter_module, "time", made)
    monkeypatch.setattr(meter_module, "_queued_seconds", lambda: made.used / 4)
    return made


class Program:
    """A program that passes over a feed, and the meter of its training."""

    def __init__(self, clock):
        self.clock = clock
        self.sent = []
        self.meter = TrainingMeter(self.sent.append, alone=True)
        self.meter._thread = object()
        self.measured = measuring(self.meter, RowSource.FILES)

    def read(self, count, seconds):
        for number in range(count):
            self.clock.pass_by(seconds)
            yield number

    def passes(self, count=10, reading=1.0, step=2.0, taken=None):
        for number, _ in enumerate(self.measured(self.read(count, reading), lambda _: 5)):
            if number == taken:
                return
            self.clock.pass_by(step, cores=0.5)

    @property
    def totals(self):
        self.meter.flush()
        return self.sent[-1]


@pytest.fixture
def program(clock):
    return Program(clock)


def test_the_totals_have_the_time_of_reading_and_the_use_of_processors(program):
    program.passes()
    program.clock.pass_by(50.0)  # evaluation
    program.passes(count=5)
    totals = program.totals
    assert (totals.training, totals.reading, totals.total_steps) == (45.0, 15.0, 75)
    assert (totals.processor, totals.queued) == (15.0, 3.75)
    assert (totals.source, totals.reads_ahead) == (RowSource.FILES, False)


def test_the_step_of_a_loop_counts_as_traced_after_some_reads(program):
    program.passes(count=10)
    assert not program.totals.traced
    program.passes(count=1)
    assert program.totals.traced


def test_the_step_of_fit_is_traced_when_it_has_ended(program):
    program.passes(count=20)  # as to adapt something
    program.meter.epoch_began(0, 20)
    assert not program.totals.traced
    program.meter.step_ended(0, {})
    assert program.totals.traced


def test_rows_that_are_read_in_a_validation_do_not_count(program):
    program.meter.epoch_began(0, 50)
    program.passes(step=0.0)
    program.meter.pause()
    program.passes()
    assert program.totals.reading == 10.0


def test_an_epoch_that_reads_no_rows_of_a_feed_has_no_source(program):
    program.meter.epoch_began(0, 50)
    program.passes(step=0.0)
    assert program.totals.source is RowSource.FILES
    program.meter.epoch_began(1, 50)
    assert program.totals.source is None


def test_the_end_of_an_abandoned_pass_ends_no_other_one(program):
    first = program.measured(program.read(2, 1.0), lambda _: 1)
    next(first)
    second = program.measured(program.read(2, 1.0), lambda _: 1)
    next(second)
    assert len(list(first)) == 1
    assert program.meter._times.training.runs
    assert len(list(second)) == 1
    assert not program.meter._times.training.runs


def test_the_time_for_which_threads_wait_for_a_processor_is_known():
    assert meter_module._queued_seconds() > 0
