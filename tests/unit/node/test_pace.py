"""What a node measures of its passes, by a clock that the test turns."""

from unittest.mock import create_autospec

import pytest

from tensorflowonspark.messages import RowSource, TrainingPace
from tensorflowonspark.node.feed import pace
from tensorflowonspark.node.feed.pace import PaceMeter
from tensorflowonspark.node.meter import TrainingMeter


class Clock:
    """In place of the module `time`: seconds pass only where the test says so."""

    def __init__(self):
        self.now = self.used = 0.0

    def monotonic(self):
        return self.now

    def process_time(self):
        return self.used

    def pass_by(self, seconds, cores=0.0):
        self.now += seconds
        self.used += cores * seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    monkeypatch.setattr(pace, "_queued_seconds", lambda: made.used / 4)
    return made


class Program:
    """A program that passes over a feed, and the reports of its meter."""

    def __init__(self, clock):
        self.clock = clock
        self.sent = []
        counted = create_autospec(TrainingMeter, instance=True)
        counted.note_pace.side_effect = self.sent.append
        self.meter = PaceMeter(3, RowSource.FILES, counted)

    def read(self, count, seconds):
        for number in range(count):
            self.clock.pass_by(seconds)
            yield number

    def passes(self, count=10, reading=1.0, step=2.0, first_step=2.0, taken=None):
        elements = self.meter.measured(self.read(count, reading), lambda _: 5)
        for number, _ in enumerate(elements):
            if number == taken:
                return
            self.clock.pass_by(step if number else first_step, cores=0.5)

    @property
    def last(self):
        self.meter.finish()
        return self.sent[-1] if self.sent else None


@pytest.fixture
def program(clock):
    return Program(clock)


def test_the_totals_of_passes_are_those_after_the_step_was_traced(program):
    program.passes(first_step=100.0)
    program.clock.pass_by(50.0)  # evaluation, which is traced too
    program.passes()
    program.clock.pass_by(4.0)
    program.passes()
    program.clock.pass_by(7.0)
    # 10 reads of 1 s in each pass; 9, 10 and 10 steps of 2 s
    queued = (100 + 28 * 2 + 2) * 0.5 / 4
    assert program.last == TrainingPace(3, RowSource.FILES, False, 3, 150, 92.0, 4.0, 30.0, 29.0, queued, 7.0)


def test_a_first_pass_of_few_reads_does_not_count_for_it_may_be_all_tracing(program):
    program.passes(count=3, first_step=100.0)
    assert not program.sent
    program.passes(count=3)
    assert program.last == TrainingPace(3, RowSource.FILES, False, 1, 15, 9.0, 0.0, 3.0, 3.0, 13.75, 0.0)


def test_a_pass_that_is_abandoned_counts_up_to_its_last_read(program):
    program.passes()
    program.passes(count=100, taken=20)
    assert (program.last.passes, program.last.steps) == (2, 5 * 31)
    assert program.last.seconds == 28.0 + 61.0  # 10 + 21 reads, 9 + 20 steps


def test_a_few_batches_that_are_taken_to_build_a_model_are_no_pass(program):
    program.passes(count=100, taken=1)
    assert program.last is None
    program.passes(first_step=100.0)
    assert (program.last.passes, program.last.seconds) == (1, 28.0)


def test_two_passes_at_the_same_time_are_not_reported(program):
    for _ in zip(*[program.meter.measured(program.read(20, 1.0), lambda _: 1) for _ in range(2)], strict=True):
        program.clock.pass_by(2.0)
    program.passes()
    assert program.last is None


def test_a_report_follows_a_pass_at_most_once_a_second(program):
    program.passes()
    assert len(program.sent) == 1
    for _ in range(10):
        program.passes(reading=0.001, step=0.001, first_step=0.001)
    assert len(program.sent) == 1


def test_the_time_for_which_threads_wait_for_a_processor_is_known():
    assert pace._queued_seconds() > 0
