"""Goodput: what became of the seconds of the nodes that train, by a clock that the test turns."""

import pytest

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.metrics.goodput import CAUSES
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.records import Goodput
from tensorflowonspark.driver.nodes import NodeProgram, Roster
from tensorflowonspark.messages import TrainingTotals
from tests.support.played_training import PlayedClock


class Run:
    """A run of two workers, of which each test plays what the driver learns."""

    def __init__(self, spec=None):
        self.now = 1000.0
        self.spec = spec or ClusterSpec(num_workers=2)
        self.store = MetricsStore("train", PlayedClock(lambda: self.now))
        self.restarts = -1

    def attempt(self):
        """Begin an attempt, whose programs begin ten seconds later."""
        self.restarts += 1
        roster = Roster(self.spec)
        self.nodes = roster.nodes
        self.store.begin_attempt("id", self.nodes, roster.chief.number, self.restarts, lambda: None)
        self.now += 10.0
        self.begin(*self.nodes)

    def fail_after_a_checkpoint(self):
        """Have an attempt train for forty seconds, save its hundredth step, and fail after ten more."""
        self.attempt()
        self.now += 40.0
        self.totals(training=40.0, saved=100)
        self.now += 10.0
        self.totals(training=50.0, saved=100)
        self.end(*self.nodes)

    def begin(self, *nodes):
        for node in nodes:
            node.program.begun_at = self.now

    def end(self, *nodes):
        for node in nodes:
            node.program.ended_at = self.now

    def totals(self, **values):
        for node in self.nodes:
            self.store.take_totals(
                node, TrainingTotals(epoch=0, waiting_for_rows=0.0) if not values else totals_of(values)
            )

    def seconds(self, whole):
        """Return the seconds of each kind, of so many of all nodes."""
        found = self.store.snapshot().goodput
        assert found.share + sum(found.causes.values()) == pytest.approx(1.0)
        assert tuple(found.causes) == CAUSES
        shares = {"steps": found.share, **found.causes}
        return {cause: pytest.approx(whole * share, abs=1e-6) for cause, share in shares.items() if share > 1e-9}


def totals_of(values):
    return TrainingTotals(**{"epoch": 0, "waiting_for_rows": 0.0, **values})


@pytest.fixture
def run():
    return Run()


def test_an_import_is_no_other_start(run):
    run.attempt()
    run.now += 20.0
    run.totals(importing=6.0, training=15.0)
    assert run.seconds(60.0) == {"start": 18.0, "importing": 12.0, "steps": 30.0}


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ((1.0, 9.0), {"waiting_for_workers": 8.0, "steps": 32.0}),  # the first second is the exchange
        ((4.0, 4.0), {"steps": 40.0}),
        ((None, 9.0), {"steps": 40.0}),
        ((0.0, 30.0), {"waiting_for_workers": 20.0, "steps": 20.0}),
    ],
)
def test_a_worker_waits_for_others_for_longer_than_the_one_that_waits_least(run, waits, expected):
    run.attempt()
    run.now += 20.0
    for node, seconds in zip(run.nodes, waits, strict=True):
        run.store.take_totals(node, totals_of({"training": 20.0, "waiting_for_workers": seconds}))
    assert run.seconds(60.0) == {"start": 20.0, **expected}


def test_there_is_none_before_the_start(run):
    assert run.store.snapshot().goodput is None


def test_each_second_of_a_training_has_its_cause(run):
    run.attempt()
    run.now += 5.0 + 20.0  # to import, then for the feed
    run.totals(waiting_for_feed=20.0)
    run.now += 1.0
    run.totals(waiting_for_feed=20.0, training=1.0)  # the first news of its training
    run.now += 63.0
    run.totals(waiting_for_feed=20.0, training=50.0, waiting_for_rows=8.0, saving=4.0, validating=6.0)
    run.now += 1.0
    run.end(*run.nodes)
    run.now += 5.0
    run.store.end(failed=False, text="")
    run.now += 1000.0
    causes = {"start": 30.0, "steps": 84.0, "waiting_for_rows": 56.0, "saving": 8.0, "validating": 12.0}
    assert run.seconds(210.0) == {**causes, "other": 10.0, "shutdown": 10.0}
    assert str(run.store.snapshot().goodput) == (
        "goodput 40 %: waiting for rows 27 %, start 14 %, validating 6 %, shutdown 5 %, other 5 %, saving 4 %"
    )


def test_steps_after_the_checkpoint_at_which_a_restart_resumes_are_repeated(run):
    run.attempt()
    run.now += 20.0
    run.totals(training=20.0, saved=100)
    run.now += 20.0
    run.totals(training=40.0, saved=100)
    run.now += 40.0
    run.totals(training=64.0, waiting_for_rows=8.0, saving=2.0, saved=200)
    run.totals(training=78.0, waiting_for_rows=8.0, saving=2.0, saved=200)
    run.end(*run.nodes)
    run.now += 6.0  # until the next attempt
    run.attempt()
    assert run.seconds(212.0) == {
        "start": 2 * (10.0 + 6.0 + 10.0),
        "steps": 140.0,
        "waiting_for_rows": 16.0,
        "saving": 4.0,
    }
    run.now += 10.0
    run.totals(training=10.0, restored=200)
    lost = 2 * (70.0 - 56.0)
    assert run.seconds(232.0) == {
        "start": 52.0,
        "steps": 140.0 - lost + 20.0,
        "repeated_steps": lost,
        "waiting_for_rows": 16.0,
        "saving": 4.0,
    }


def test_a_checkpoint_before_the_last_one_costs_the_steps_of_all_attempts_since(run):
    run.fail_after_a_checkpoint()
    run.attempt()  # which can't use it, and begins anew
    run.now += 20.0
    run.totals(training=20.0)
    run.end(*run.nodes)
    run.attempt()  # fails before it trains
    run.end(*run.nodes)
    run.attempt()
    run.now += 10.0
    run.totals(training=10.0, restored=100)  # of the first attempt
    assert run.seconds(240.0) == {"start": 80.0, "steps": 2 * (40.0 + 10.0), "repeated_steps": 2 * (10.0 + 20.0)}


def test_a_training_that_resumed_twice_repeats_what_each_failure_cost(run):
    run.fail_after_a_checkpoint()
    run.attempt()
    run.now += 30.0
    run.totals(training=30.0, restored=100)  # and no checkpoint since
    run.end(*run.nodes)
    run.attempt()
    run.now += 25.0
    run.totals(training=25.0, restored=100, saved=200)
    run.now += 5.0
    run.totals(training=30.0, restored=100, saved=200)
    assert run.seconds(280.0) == {"start": 60.0, "steps": 2 * (40.0 + 30.0), "repeated_steps": 2 * (10.0 + 30.0)}


def test_a_program_that_resumes_by_its_own_means_repeats_nothing_that_is_known(run):
    run.attempt()
    run.now += 50.0
    run.totals(training=50.0)
    run.end(*run.nodes)
    run.attempt()
    run.now += 30.0
    run.totals(training=30.0, epoch=3)
    assert run.seconds(200.0) == {"start": 40.0, "steps": 160.0}


def test_programs_that_do_not_train_have_a_goodput_of_zero(run):
    run.attempt()
    run.now += 50.0
    run.end(*run.nodes)
    run.now += 5.0
    run.store.end(failed=False, text="")
    assert run.store.snapshot().goodput.share == 0.0
    assert run.seconds(130.0) == {"start": 20.0, "other": 100.0, "shutdown": 10.0}


def test_a_run_that_fails_before_its_programs_begin_was_all_start(run):
    run.attempt()
    for node in run.nodes:
        node.program = NodeProgram(ended_at=run.now)
    run.store.end(failed=True, text="")
    assert run.seconds(20.0) == {"start": 20.0}


def test_a_slot_whose_program_has_ended_is_idle_until_the_others_have(run):
    run.attempt()
    run.now += 10.0
    run.totals(training=10.0)
    run.end(run.nodes[1])
    run.now += 15.0
    run.store.take_totals(run.nodes[0], totals_of({"training": 25.0}))
    assert run.seconds(70.0) == {"start": 20.0, "steps": 35.0, "idle": 15.0}


def test_the_steps_of_a_node_that_starts_again_alone_count(run):
    run.attempt()
    run.now += 10.0
    run.totals(training=10.0)
    node = run.nodes[1]
    run.store.retire(node)
    node.program = NodeProgram()
    run.now += 5.0
    run.begin(node)
    run.now += 5.0
    run.store.take_totals(run.nodes[0], totals_of({"training": 20.0}))
    run.store.take_totals(node, totals_of({"training": 5.0}))
    assert run.seconds(60.0) == {"start": 25.0, "steps": 35.0}


def test_nodes_that_do_not_train_and_those_that_serve_do_not_count():
    run = Run(ClusterSpec(num_workers=2, num_ps=1, chief=True, evaluator=True))
    run.attempt()
    for node in run.nodes[3:]:
        node.program.serving = True
    run.now += 10.0
    run.totals(training=10.0)
    assert run.seconds(20.0) == {"start": 10.0, "steps": 10.0}


def test_shares_add_up_to_one_where_a_nodes_clock_is_faster(run):
    run.attempt()
    run.now += 10.0
    run.totals(training=12.0, saving=3.0)
    found = run.seconds(40.0)
    assert found.keys() == {"start", "steps", "saving"}


def test_a_goodput_as_text_leaves_out_small_shares():
    assert str(Goodput(0.998, {"start": 0.002, "idle": 0.0})) == "goodput 100 %"
