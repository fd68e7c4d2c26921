"""The advice is right or there is none: every branch, by hand-made totals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.advice import WorkerTraining, advice, feeding_advice, training_advice
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.nodes import Roster
from tensorflowonspark.messages import Member, RowSource, TrainingTotals

# A minute of 1,000 steps, which reads rows for 6 s beside them, and uses a core.
MINUTE = TrainingTotals(
    time=60.0,
    total_steps=1000,
    training=58.0,
    reading=6.0,
    processor=60.0,
    queued=1.0,
    source=RowSource.CACHE,
    reads_ahead=True,
    traced=True,
)


def worker(index=0, *, has_gpus=False, **changes):
    return WorkerTraining(f"worker:{index}", f"h{index}", replace(MINUTE, **changes), has_gpus)


def advice_for(*workers, **settings):
    return advice(workers, **settings)


def test_of_workers_that_read_data_of_their_own_only_the_slowest_is_known():
    def own(index, waiting):
        return replace(worker(index, source=None, reading=0.0), waiting=waiting)

    assert advice_for(own(0, 0.6), own(1, 0.05)) == (
        "waiting for other workers bounded it: worker:1 on h1 waited for the others in 5% of its time, and they for it "
        "in at least 60%. Look what it does beside its steps, free its host of other work, or give it as many cores"
    )
    assert advice_for(own(0, 0.3), own(1, 0.3)) is None
    assert advice_for(own(0, None), own(1, None)) is None
    assert advice_for(own(0, 0.6)) is None


def test_steps_that_compute():
    assert advice_for(worker()) == (
        "computing bounded it: 1,000 steps took 58 s, each worker with 1.0 cores, and reading rows 10% of that time. "
        "Give each worker more cores or a GPU, or take more workers"
    )


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"total_steps": 10_000}, "Take a larger batch_size, or compile(steps_per_execution=10)"),
        ({"total_steps": 10_000, "reads_ahead": False}, "Take a larger batch_size"),
        ({"queued": 40.0}, "Give each worker more cores (fewer nodes on a host), or a GPU"),
        ({"queued": 40.0, "has_gpus": True}, "Give each worker more cores or a GPU, or take more workers"),
        (
            {"processor": 6.0},
            "Look for waits in the program and between the hosts; a larger batch_size takes fewer steps",
        ),
    ],
)
def test_the_setting_for_steps_depends_on_what_they_use(changes, setting):
    assert advice_for(worker(**changes)).partition(". ")[2] == setting


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({}, "Take a larger batch_size, feed fewer columns or smaller types, or cache='memory'"),
        ({"source": RowSource.SPARK}, "Give Spark more cores or partitions, or a DataFrame that it has computed"),
        ({"source": RowSource.FILES}, "Keep the rows for later epochs (cache='disk'), read fewer columns"),
        ({"reads_ahead": False}, "Read ahead of the steps with ctx.dataset, or take a larger batch_size"),
    ],
)
def test_the_setting_for_rows_depends_on_where_they_are(changes, setting):
    found = advice_for(worker(0, reading=56.0, **changes), worker(1, reading=55.0, **changes))
    assert found.startswith(f"waiting for rows bounded it: reading them took 97% of 58 s. {setting}")


def test_one_worker_whose_rows_are_slow_bounds_all_others():
    found = advice_for(worker(0), worker(1, reading=57.0))
    assert found.startswith("waiting for rows bounded it: reading them took 98% of 58 s on worker:1 (h1). ")


def test_one_worker_that_computes_for_longer_bounds_all_others():
    found = advice_for(worker(0, processor=20.0), worker(1), worker(2, processor=30.0))
    assert found == (
        "waiting for other workers bounded it: worker:1 on h1 was busy with 1.0 cores, while the others waited for it "
        "with at most 0.5. Free its host of other work, give it as many cores as the others have, or even out their "
        "work"
    )


def test_a_worker_beside_other_work_waits_for_cores_and_is_the_slowest():
    found = advice_for(worker(0, processor=30.0), worker(1, processor=30.0, queued=40.0))
    assert found.startswith("waiting for other workers bounded it: worker:1 on h1 was busy with 1.2 cores")


@pytest.mark.parametrize(
    ("one", "other", "settings"),
    [
        ({"processor": 20.0}, {}, {"in_step": False}),  # parameter servers
        ({"processor": 20.0}, {"training": 90.0, "time": 90.0, "processor": 90.0}, {}),  # each in its own time
        ({"processor": 20.0, "has_gpus": True}, {"has_gpus": True}, {}),  # a GPU needs no processor time
        ({"processor": 50.0}, {}, {}),
        ({"processor": 5.0}, {"processor": 20.0}, {}),  # neither is busy
    ],
)
def test_no_worker_is_blamed_without_need(one, other, settings):
    assert advice_for(worker(0, **one), worker(1, **other), **settings).startswith("computing bounded it")


@pytest.mark.parametrize(
    "changes",
    [
        {"training": 4.0},  # too short
        {"total_steps": 19},
        {"reading": 35.0},  # both take about as long
        {"reading": 45.0},
    ],
)
def test_there_is_no_advice_that_is_not_certain(changes):
    assert advice_for(worker(**changes)) is None
    assert advice_for(worker(0), worker(1, **changes)) is None


def test_rows_that_arrive_in_bursts_bound_the_steps_with_pauses():
    assert advice_for(worker(reading=45.0, source=RowSource.SPARK)).startswith("waiting for rows bounded it")


def test_workers_that_do_not_train_in_step_all_wait_for_rows_or_there_is_no_advice():
    assert advice_for(worker(0), worker(1, reading=57.0), in_step=False) is None
    assert advice_for(worker(0, reading=57.0), worker(1, reading=57.0), in_step=False).startswith("waiting for rows")


@pytest.mark.parametrize(("waited", "total"), [(4.0, 4.9), (20.0, 60.0), (0.0, 60.0)])
def test_feeding_that_took_less_than_half_of_the_time_does_not_bound(waited, total):
    assert feeding_advice(waited, total, can_start_early=True) is None


def test_feeding_that_took_most_of_the_time_could_have_gone_beside_the_first_epoch():
    assert "60 s until Spark had sent the last one. Begin with the first ones (start='first_rows'), give" in (
        feeding_advice(50.0, 60.0, can_start_early=True)
    )


seconds = st.floats(0, 1e6)
totals = st.builds(
    TrainingTotals,
    time=st.floats(1.0, 1e6),
    total_steps=st.integers(1, 10**9),
    training=seconds,
    reading=seconds,
    processor=seconds,
    queued=seconds,
    source=st.sampled_from(RowSource),
    reads_ahead=st.booleans(),
)


@given(
    st.lists(st.builds(WorkerTraining, st.just("worker:0"), st.just("h"), totals, st.booleans()), max_size=5),
    st.booleans(),
)
def test_any_totals_give_one_line_or_none(workers, in_step):
    found = advice(workers, in_step=in_step)
    assert found is None or ("\n" not in found)


@pytest.fixture
def nodes():
    made = Roster(ClusterSpec(num_workers=2)).nodes
    for node in made:
        node.member = Member(node.number, node.role, f"h{node.number}", 1)
    return made


def later(totals, minutes=1):
    """Return the totals of a program that has had a minute of tracing and so many of training."""
    factors = {name: 1.0 + minutes * getattr(MINUTE, name) for name in ("time", "training", "processor", "queued")}
    return replace(totals, total_steps=1 + minutes * MINUTE.total_steps, reading=minutes * MINUTE.reading, **factors)


def test_a_training_counts_from_the_time_on_at_which_its_step_was_traced(nodes):
    store = MetricsStore()
    for node in nodes:
        store.take_totals(node, TrainingTotals(time=0.5, source=RowSource.CACHE))
        store.take_totals(node, later(MINUTE, 0))
        assert training_advice(nodes, store, in_step=True) is None
        store.take_totals(node, later(MINUTE))
    assert "1,000 steps took 58 s" in training_advice(nodes, store, in_step=True)


def test_the_next_training_is_measured_for_itself(nodes):
    store = MetricsStore()
    for node in nodes:
        store.take_totals(node, later(MINUTE, 0))
        store.take_totals(node, later(MINUTE, 10))
    store.end_training()
    assert training_advice(nodes, store, in_step=True) is None
    for node in nodes:
        store.take_totals(node, later(MINUTE, 10))
        store.take_totals(node, later(MINUTE, 11))
    assert "1,000 steps took 58 s" in training_advice(nodes, store, in_step=True)


def test_a_program_that_begins_anew_is_measured_anew(nodes):
    store = MetricsStore()
    store.take_totals(nodes[0], later(MINUTE, 10))
    store.take_totals(nodes[0], later(MINUTE, 0))
    store.take_totals(nodes[0], later(MINUTE))
    assert store.record(0).training.total_steps == MINUTE.total_steps


@pytest.mark.parametrize("totals", [None, replace(later(MINUTE), source=None)])
def test_a_worker_without_rows_of_a_feed_leaves_the_bound_uncertain(nodes, totals):
    store = MetricsStore()
    for node in nodes:
        store.take_totals(node, later(MINUTE, 0))
    store.take_totals(nodes[0], later(MINUTE))
    if totals is not None:
        store.take_totals(nodes[1], totals)
    assert training_advice(nodes, store, in_step=True) is None
