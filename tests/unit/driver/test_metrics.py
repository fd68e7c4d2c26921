"""The metrics of a cluster: rates of what nodes send, curves, stragglers, and listeners."""

import itertools
import math
import threading
import time
from collections import deque
from dataclasses import replace
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.metrics.event_log import MetricsListener
from tensorflowonspark.driver.metrics.history import History, Report, Reports
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.nodes import NodeState, Roster
from tensorflowonspark.messages import Evaluation, GpuUsage, Member, NodeUsage, ReportedMetrics, TrainingTotals


def totals(at, steps=0, rows=0, waiting_for_rows=0.0, waiting_for_workers=0.0, training=None):
    return TrainingTotals(
        at,
        0,
        steps,
        100,
        steps,
        rows,
        None if rows is None else 8 * rows,
        waiting_for_rows,
        waiting_for_workers,
        at if training is None else training,
    )


def reported(*args, **options):
    return TrainingTotals(metrics=(ReportedMetrics(*args, **options),))


@pytest.fixture
def nodes():
    roster = Roster(ClusterSpec(num_workers=3))
    for node in roster.nodes:
        node.member = Member(node.number, node.role, f"h{node.number}", 1)
        roster.move(node, NodeState.RUNNING)
    return roster.nodes


@pytest.fixture
def store(nodes):
    made = MetricsStore("train")
    made.begin_attempt("id", nodes, 0, 0, lambda: "take a larger batch_size")
    yield made
    made.end(failed=False, text="the cluster has ended")


def test_rates_are_those_of_the_last_seconds(store, nodes):
    store.take_totals(nodes[0], totals(10.0, steps=5, rows=100))
    store.take_totals(nodes[0], totals(12.0, steps=15, rows=1100, waiting_for_rows=0.5, waiting_for_workers=1.0))
    found = store.snapshot().nodes[0]
    assert (found.rows_per_second, found.seconds_per_step) == (500.0, 0.2)
    assert (found.waiting_for_rows, found.waiting_for_workers, found.computing) == (0.25, 0.5, 0.25)
    assert (found.rows, found.bytes, found.total_steps) == (1100, 8800, 15)


def test_rows_of_a_program_that_reads_its_own_data_are_unknown(store, nodes):
    store.take_totals(nodes[0], totals(10.0, steps=5, rows=None))
    store.take_totals(nodes[0], totals(12.0, steps=15, rows=None))
    found = store.snapshot()
    assert (found.rows, found.bytes, found.rows_per_second) == (None, None, None)
    assert (found.nodes[0].rows, found.nodes[0].rows_per_second) == (None, None)
    assert found.nodes[0].seconds_per_step == 0.2
    store.take_totals(nodes[1], totals(12.0, rows=7))
    assert store.snapshot().rows == 7


def test_a_node_runs_from_the_begin_of_its_program_and_has_returned_after_its_end(store, nodes):
    def states():
        return [each.state for each in store.snapshot().nodes]

    assert states() == ["connected"] * 3  # it is up, and waits for the others
    for node in nodes:
        node.program.begun_at = 1.0
    assert states() == ["running"] * 3
    for node in nodes[:2]:
        node.program.returned = True
    for node in nodes:
        node.state = NodeState.GONE
    assert states() == ["returned", "returned", "gone"]


def test_a_node_that_does_not_train_has_no_rates(store, nodes):
    store.take_totals(nodes[0], totals(10.0, steps=5))
    store.take_totals(nodes[0], totals(12.0, steps=5, training=10.0))
    assert store.snapshot().nodes[0].computing is None


def test_unknown_waits_leave_computing_unknown(store, nodes):
    store.take_totals(nodes[0], totals(10.0, waiting_for_rows=None))
    store.take_totals(nodes[0], totals(12.0, steps=1, waiting_for_rows=None))
    found = store.snapshot().nodes[0]
    assert (found.waiting_for_rows, found.waiting_for_workers, found.computing) == (None, 0.0, None)


def test_a_node_that_has_returned_has_the_rates_of_its_whole_training(store, nodes):
    store.take_totals(nodes[0], totals(10.0, steps=20, rows=1000, waiting_for_workers=2.5))
    nodes[0].state = NodeState.RETURNED
    found = store.snapshot().nodes[0]
    assert (found.rows_per_second, found.seconds_per_step, found.waiting_for_workers) == (100.0, 0.5, 0.25)


@pytest.mark.parametrize(
    ("waited", "steps", "stragglers"),
    [
        ((8.0, 1.0, 9.0), (10, 10, 10), [False, True, False]),  # the others wait for it
        ((6.0, 4.0, 5.0), (10, 10, 10), [False, False, False]),  # all exchange for as long
        ((None, None, None), (10, 10, 5), [False, False, True]),  # of asynchronous training, by its seconds per step
    ],
)
def test_who_is_a_straggler(store, nodes, waited, steps, stragglers):
    for node, waiting, taken in zip(nodes, waited, steps, strict=True):
        begin = totals(0.0, waiting_for_workers=None if waiting is None else 0.0)
        end = totals(10.0, steps=taken, waiting_for_workers=waiting)
        for each in (begin, end):
            store.take_totals(node, replace(each, traced=True))
    assert [each.straggler for each in store.snapshot().nodes] == stragglers
    assert [store.record(node.number).waiting_share for node in nodes] == [each and each / 10 for each in waited]


def test_cores_are_the_processor_time_between_two_measurements(store, nodes):
    gpu = GpuUsage("0", 0.5, 1 << 30, 4 << 30)
    store.take_usage(nodes[1], NodeUsage(10.0, 3.0, 1 << 20, (gpu,)))
    assert store.snapshot().nodes[1].cores is None
    store.take_usage(nodes[1], NodeUsage(12.0, 6.0, 1 << 20, (gpu,)))
    found = store.snapshot().nodes[1]
    assert (found.cores, found.memory, found.gpus) == (1.5, 1 << 20, (gpu,))
    store.take_usage(nodes[1], NodeUsage(13.0, 0.5, 1 << 20))  # the node was started again
    assert store.snapshot().nodes[1].cores is None


def test_the_chief_reports_the_epochs_of_the_cluster(store, nodes):
    store.take_totals(nodes[0], reported(0, {"loss": 1.0}, ended=False))
    store.take_totals(nodes[1], reported(0, {"loss": 7.0}, ended=True))
    store.take_totals(nodes[0], reported(0, {"loss": math.nan, "val_loss": 2.0}, ended=True, seconds=3.0))
    found = store.snapshot()
    (epoch,) = found.epochs
    assert math.isnan(epoch.values["loss"])
    assert (epoch.values["val_loss"], epoch.seconds) == (2.0, 3.0)
    assert found.nodes[1].values == {"loss": 7.0}
    assert [each.ended for each in store.events.reports()] == [False, True]
    assert found.advice == "take a larger batch_size"


def evaluated(epoch, loss):
    return Evaluation("/saved", f"step-{epoch}-{loss}", metrics=ReportedMetrics(epoch, {"val_loss": loss}, ended=True))


def test_what_an_evaluator_finds_belongs_to_its_epoch_whenever_it_comes(store, nodes):
    store.take_evaluation(evaluated(0, 5.0))  # before the epoch's own report
    for epoch in range(3):
        store.take_totals(nodes[0], reported(epoch, {"loss": float(epoch)}, ended=True))
    store.take_evaluation(evaluated(1, 6.0))
    store.take_evaluation(evaluated(1, 6.0))
    store.take_evaluation(evaluated(9, 7.0))  # of an earlier run
    expected = [{"loss": 0.0, "val_loss": 5.0}, {"loss": 1.0, "val_loss": 6.0}, {"loss": 2.0}]
    assert [each.values for each in store.snapshot().epochs] == expected
    assert [each.values for each in store.events.reports()] == expected


def test_reports_within_epochs_are_thinned_and_those_of_their_ends_kept(store, nodes):
    for number in range(3000):
        store.take_totals(nodes[0], reported(number // 100, {"loss": number}, ended=number % 100 == 99))
    found = store.events.reports()
    assert len(found) <= 2000
    assert sum(each.ended for each in found) == 30
    assert len(store.snapshot().epochs) == 30


def test_the_reports_of_a_long_epoch_cover_all_of_it():
    reports = Reports()
    for second in range(86_400):
        reports.add(Report(float(second), 0, {"loss": 1.0}, ended=False))
    times = [each.time for each in reports.all()]
    assert (times[0], times[-1]) == (0.0, 86_399.0)
    assert len(times) <= 2000
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 86_400 / 100


def test_the_ends_of_many_epochs_are_thinned_too():
    reports = Reports()
    for second in range(86_400):
        reports.add(Report(float(second), second // 2, {"loss": 1.0}, ended=second % 2 == 1))
    found = reports.all()
    assert len(found) <= 2000
    assert found[-1].time == 86_399.0
    times = [each.time for each in found if each.ended]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 86_400 / 100


def test_the_epochs_of_a_program_that_reports_for_days_are_bounded(store, nodes, monkeypatch):
    monkeypatch.setattr(store.events, "_epochs", deque(maxlen=10))
    for number in range(25):
        store.take_totals(nodes[0], reported(number, {"loss": 1.0}, ended=True))
    found = store.snapshot()
    assert [each.epoch for each in found.epochs] == list(range(15, 25))
    assert found.total_epochs == 25


def test_a_listener_is_called_for_epochs_and_events_in_order_and_may_fail(store, nodes, caplog):
    called, done = [], Event()

    class Failing(MetricsListener):
        def epoch_ended(self, epoch):
            raise ConnectionError("no server")

    class Listener(MetricsListener):
        def epoch_ended(self, epoch):
            called.append(epoch.epoch)

        def happened(self, event):
            called.append(event.kind)
            done.set()

    store.events.subscribe(Failing())
    store.events.subscribe(Listener())
    for number in range(3):
        store.take_totals(nodes[0], reported(number, {"loss": 1.0}, ended=True))
    store.events.note("failure", "worker:1 failed", "worker:1")
    assert done.wait(10)
    assert called == [0, 1, 2, "failure"]


def test_the_threads_are_as_many_for_a_hundred_nodes_as_for_one():
    before = threading.active_count()
    roster = Roster(ClusterSpec(num_workers=100))
    store = MetricsStore("train")
    store.events.subscribe(MetricsListener())
    store.begin_attempt("id", roster.nodes, 0, 0, lambda: None)
    for node in roster.nodes:
        store.take_totals(node, totals(1.0, steps=1, rows=8))
        store.take_usage(node, NodeUsage(1.0, 0.5, 1 << 20))
        store.take_totals(node, reported(0, {"loss": 1.0}, ended=True))
    assert threading.active_count() - before <= 2
    store.end(failed=False, text="the cluster has ended")


def test_the_end_waits_for_the_listeners(nodes):
    store, called = MetricsStore(), []

    class Slow(MetricsListener):
        def happened(self, event):
            time.sleep(0.3)
            called.append(event.kind)

    store.begin_attempt("id", nodes, 0, 0, lambda: None)
    store.events.subscribe(Slow())
    store.end(failed=True, text="worker:0 failed")
    store.end(failed=True, text="again")
    assert called == ["ended"]
    assert store.snapshot().state == "failed"


def test_a_further_attempt_keeps_the_curves_and_starts_counting_anew(store, nodes):
    store.take_totals(nodes[0], totals(10.0, rows=100))
    store._add_sample()
    store.begin_attempt("id2", nodes, 0, 1, lambda: None)
    assert store.snapshot().rows is None  # the new programs have taken none yet
    assert store.snapshot().restarts == 1
    assert len(store.series(0)["time"]) == 1


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=300), st.sampled_from([2, 4, 16]))
def test_a_history_is_bounded_and_keeps_the_mean(values, points):
    history = History(["a"], points=points)
    for at, value in enumerate(values):
        history.add(float(at), {"a": value})
    found = history.columns()
    assert len(found["time"]) == len(found["a"]) <= points
    assert found["time"] == sorted(found["time"])
    known = [value for value in values if value is not None]
    if known:
        assert all(each is None or min(known) - 1 <= each <= max(known) + 1 for each in found["a"])
