"""What a node counts of its training, by a clock that the test turns."""

import math

import ml_dtypes
import numpy as np
import pytest

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.waiting import Stopwatch
from tensorflowonspark.messages import Progress, ReportedMetrics
from tensorflowonspark.node import meter as module
from tensorflowonspark.node.meter import TrainingMeter
from tensorflowonspark.node.metric_values import check_metrics


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def process_time(self):
        return self.now

    def sleep(self, _seconds):
        raise SystemExit  # no thread reports here


class Program:
    """A program that trains with `fit` or in a loop of its own, and the meter of its node."""

    def __init__(self, clock, alone=True):
        self.clock = clock
        self.sent = []
        self.meter = TrainingMeter(self.sent.append, alone=alone)
        self.meter._thread = object()

    @property
    def totals(self):
        self.meter.flush()
        return self.sent[-1]

    @property
    def reports(self):
        return [metrics for each in self.sent for metrics in each.metrics]

    def block(self, epoch, last_step, steps, rows, seconds, ahead=True):
        """Read the rows of some steps, which takes `seconds`."""
        self.meter.rows_requested(self.clock.now, ahead=ahead)
        self.clock.now += seconds
        self.meter.rows_taken(Progress(epoch, last_step, steps, rows))
        self.meter.rows_read(self.clock.now, 4, 400, ahead=ahead)

    def step(self, number, seconds, loss=0.5):
        self.clock.now += seconds
        self.meter.step_ended(number, {"loss": loss})


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_steps_of_fit_wait_for_rows_while_all_that_were_read_are_taken(clock):
    program = Program(clock)
    program.meter.epoch_began(0, 8)
    program.meter.pass_began(clock.now)
    program.block(0, 4, 8, 16, seconds=3.0)  # nothing to train on yet
    for number in range(4):
        program.step(number, 1.0)
    program.block(0, 8, 8, 32, seconds=2.0)  # the fourth step has ended before
    for number in range(4, 8):
        program.step(number, 1.0)
    program.meter.pass_ended(clock.now)
    totals = program.totals
    assert (totals.waiting_for_rows, totals.training) == (5.0, 13.0)
    assert (totals.total_steps, totals.rows, totals.bytes) == (8, 32, 800)
    assert (totals.epoch, totals.step, totals.steps) == (0, 8, 8)


def test_rows_that_are_read_ahead_are_no_wait_and_count_when_their_steps_are_taken(clock):
    program = Program(clock)
    program.meter.epoch_began(0, 8)
    program.meter.pass_began(clock.now)
    program.block(0, 4, 8, 16, seconds=0.0)
    program.block(0, 8, 8, 32, seconds=2.0)  # beside the first two steps
    program.step(0, 0.0)
    program.step(1, 0.0)
    totals = program.totals
    assert totals.waiting_for_rows == 0.0
    assert totals.rows == 8


def test_rows_of_a_program_that_takes_none_of_a_feed_are_unknown(clock):
    program = Program(clock)
    program.meter.epoch_began(0, 8)
    program.step(0, 1.0)
    assert (program.totals.total_steps, program.totals.rows, program.totals.bytes) == (1, None, None)


def test_validation_and_the_time_between_epochs_are_no_training(clock):
    program = Program(clock)
    for epoch in range(2):
        program.meter.epoch_began(epoch, 4)
        program.meter.pass_began(clock.now)
        program.block(epoch, 4, 4, 16, seconds=0.0)
        for number in range(4):
            program.step(number, 1.0)
        program.meter.pass_ended(clock.now)
        program.meter.pause()
        clock.now += 50.0
        program.meter.epoch_ended(epoch, {"loss": np.float32(0.25), "val_loss": 0.5, "name": "x"}, shown=True)
        clock.now += 7.0
    totals = program.totals
    assert (totals.training, totals.total_steps, totals.rows) == (8.0, 8, 32)
    values = {"loss": 0.25, "val_loss": 0.5}
    assert program.reports == [ReportedMetrics(epoch, values, True, 54.0, True) for epoch in range(2)]


def test_a_checkpoint_within_an_epoch_is_neither_training_nor_a_wait(clock):
    program = Program(clock)
    program.meter.epoch_began(0, 8)
    program.meter.pass_began(clock.now)
    program.block(0, 4, 8, 16, seconds=3.0)
    for number in range(4):
        program.step(number, 1.0)
    with program.meter.saving(4):
        clock.now += 5.0
    last = program.sent[-1]  # at once: the node may fail in the next step
    assert (last.saved, last.training, last.waiting_for_rows) == (4, 7.0, 3.0)
    program.block(0, 8, 8, 32, seconds=2.0)  # for which the next step waits
    program.step(4, 1.0)
    totals = program.totals
    assert (totals.training, totals.waiting_for_rows, totals.saving) == (10.0, 5.0, 5.0)


def test_a_checkpoint_that_was_not_written_is_none_at_which_a_restart_resumes(clock):
    program = Program(clock)
    program.meter.epoch_began(0, 8)
    program.step(0, 1.0)
    with pytest.raises(OSError, match="full"), program.meter.saving(1):
        clock.now += 5.0
        raise OSError("the disk is full")
    program.step(1, 1.0)
    totals = program.totals
    assert (totals.saved, totals.saving, totals.training) == (None, 5.0, 2.0)


def test_training_goes_on_after_a_validation_in_the_midst_of_an_epoch(clock):
    program = Program(clock)
    program.meter.epoch_began(0, 2)
    program.step(0, 1.0)
    program.meter.pause()
    clock.now += 4.0
    program.meter.evaluated()
    program.step(1, 1.0)
    program.meter.epoch_ended(0, {}, shown=True)
    program.meter.pause()  # evaluate() of the program's own
    clock.now += 2.0
    program.meter.evaluated()
    clock.now += 50.0
    totals = program.totals
    assert (totals.training, totals.validating) == (2.0, 6.0)


def test_the_wait_for_a_feed_and_where_a_program_resumes_are_in_its_totals(clock):
    program = Program(clock)
    with program.meter.waiting_for_feed():
        clock.now += 9.0
    assert program.totals.restored is None
    program.meter.restored(20)
    program.meter.epoch_began(0, 2)
    program.step(0, 1.0)
    program.meter.restored(30)  # of a program that goes back, not of one that resumes
    totals = program.totals
    assert (totals.waiting_for_feed, totals.training, totals.restored) == (9.0, 1.0, 20)


def test_a_dataset_of_the_program_that_has_more_steps_than_the_feed_leaves_the_wait_unknown(clock):
    program = Program(clock)
    program.meter.epoch_began(0, 8)
    program.meter.pass_began(clock.now)
    program.block(0, 4, 8, 16, seconds=0.0)
    for number in range(8):  # it repeats each batch
        program.step(number, 1.0)
    assert program.totals.waiting_for_rows is None


def test_a_loop_that_reads_batches_itself_waits_while_they_are_read(clock):
    program = Program(clock)
    program.meter.pass_began(clock.now)
    for number in range(2):
        program.block(0, 4 * number + 4, 8, 16 * number + 16, seconds=3.0, ahead=False)
        clock.now += 1.0
    program.meter.pass_ended(clock.now)
    totals = program.totals
    assert (totals.waiting_for_rows, totals.training, totals.total_steps, totals.rows) == (6.0, 8.0, 8, 32)


def test_a_loop_over_a_dataset_that_reads_ahead_has_an_unknown_wait(clock):
    program = Program(clock)
    program.meter.pass_began(clock.now)
    program.block(0, 4, 8, 16, seconds=3.0)
    assert program.totals.waiting_for_rows is None


def test_a_worker_among_others_has_an_unknown_wait_for_them_unless_it_is_measured(clock, monkeypatch):
    monkeypatch.setattr("tensorflowonspark.keras.waiting._rounds", Stopwatch())  # those of other tests count too
    program = Program(clock, alone=False)
    program.meter.pass_began(clock.now)
    assert program.totals.waiting_for_workers is None


def test_metrics_within_an_epoch_are_those_of_the_last_step(clock):
    program = Program(clock)
    program.meter.epoch_began(3, 8)
    program.step(0, 1.0, loss=1.0)
    program.step(1, 1.0, loss=math.nan)
    program.meter.flush()
    (report,) = program.reports
    assert (report.epoch, report.ended) == (3, False)
    assert math.isnan(report.values["loss"])


def test_progress_is_sent_five_times_a_second_and_at_the_end_of_a_pass(clock):
    program = Program(clock)
    program.meter.pass_began(clock.now)
    for number in range(1, 10):
        program.block(0, number, 9, 4 * number, seconds=0.07)
    assert [each.progress.step for each in program.sent] == [1, 4, 7, 9]
    many = Program(clock)
    many.meter = TrainingMeter(many.sent.append, alone=True, nodes=1000)  # of which each sends once a second
    for number in range(1, 10):
        clock.now += 0.3
        many.meter.rows_taken(Progress(0, number, 100, 4 * number))  # not in a pass that is measured
    assert [each.progress.step for each in many.sent] == [1, 5, 9]


def test_rows_that_leave_the_feed_do_not_count_before_their_steps_in_any_message(clock):
    program = Program(clock)
    program.meter.epoch_began(0, 8)
    program.meter.pass_began(clock.now)
    program.block(0, 4, 8, 16, seconds=1.0)
    for number in range(4):
        program.step(number, 1.0)
    program.block(0, 8, 8, 32, seconds=1.0)
    assert [each.rows for each in program.sent] == [0, 16]


def test_a_program_that_only_reports_metrics_is_in_no_epoch(clock):
    program = Program(clock)
    program.meter.report({"loss": 0.5}, None)
    (sent,) = program.sent
    assert (sent.epoch, sent.progress, sent.metrics[0].values) == (None, None, {"loss": 0.5})


def test_of_very_many_reports_some_are_left_out_and_never_the_last_one(clock):
    program = Program(clock)
    for number in range(1000):
        program.meter.report({"loss": number / 10}, None)
        clock.now += 0.01
    program.meter.flush()
    sent = [each.epoch for each in program.reports]
    assert sent[:100] == list(range(100))
    assert 190 < len(sent) < 220
    assert sent[-1] == 999


def test_reports_that_name_their_epoch_are_all_sent(clock):
    program = Program(clock)
    for number in (5, 6):
        program.meter.report({"loss": 0.5}, number)
    program.meter.report({"loss": 0.5}, None)
    program.meter.flush()
    assert [each.epoch for each in program.reports] == [5, 6, 7]


def test_metrics_are_numbers_of_any_kind():
    found = check_metrics({"a": 1, "b": np.float16(0.5), "c": np.array(2), "d": True, "e": ml_dtypes.bfloat16(0.25)})
    assert found == {"a": 1.0, "b": 0.5, "c": 2.0, "d": 1.0, "e": 0.25}
    assert math.isnan(check_metrics({"loss": math.nan})["loss"])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("0.5", "a str: expected a number"),
        (None, "a NoneType"),
        (np.zeros(3), r"of shape \(3,\): report a number of it"),
        (1j, "a complex"),
    ],
)
def test_a_metric_that_is_no_number_is_refused_by_name(value, why):
    with pytest.raises(SpecError, match=f"the metric 'loss' is {why}"):
        check_metrics({"loss": value})


def test_a_report_without_metrics_is_refused():
    with pytest.raises(SpecError, match="has no metric"):
        check_metrics({})
