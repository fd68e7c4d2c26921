"""Every row exactly once per epoch, as many steps on all workers, and no hang, whatever is fed in whatever way."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorflowonspark as tfos
from tensorflowonspark.task import feeder
from tests.support.inprocess import cluster_in_process, partitions_of, run_in_process
from tests.support.programs import wait_for


def read(args, ctx):
    """Pass over each feed; return the rows and the steps of each epoch."""
    feeds = []
    for feed in ctx.feeds():
        epoch = feed.batches(args["batch_size"], features=["x", "id"], shuffle=args["shuffle"])
        passes = []
        for _ in range(args["epochs"]):
            steps, ids = 0, []
            for batch in epoch():
                real = ~np.signbit(batch["sample_weight"])
                assert batch["x"].shape == (len(real), 2)
                assert np.array_equal(batch["x"][:, 0], batch["id"])
                steps += 1
                ids += batch["id"][real].tolist()
            passes.append((steps, ids))
        feeds.append(passes)
    return feeds


def assert_exactly_once(results, total, epochs):
    for epoch in range(epochs):
        passes = [feed[epoch] for feed in results]
        assert sorted(row for _, ids in passes for row in ids) == list(range(total))
        assert len({steps for steps, _ in passes}) == 1


_ANY_TIME = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
_any_feeds = given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any),
    num_workers=st.integers(1, 3),
    batch_size=st.integers(3, 50),
    epochs=st.integers(1, 3),
    cache=st.sampled_from(["disk", "memory", None]),
    start=st.sampled_from(["all_rows", "first_rows"]),
    limit=st.sampled_from([None, 1, 2000]),
    slots=st.integers(1, 3),
    shuffle=st.booleans(),
    listed=st.sampled_from([0, 1 << 24]),  # rows, above which their order is computed
    rebalance=st.booleans(),
    mishaps=st.dictionaries(
        st.integers(0, 5), st.sampled_from(["before the end", "after the end", "elsewhere"]), max_size=2
    ),
)


@pytest.mark.deep
@pytest.mark.usefixtures("unchecked_frames")
@settings(max_examples=10, **_ANY_TIME)
@_any_feeds
def test_ten_draws(**draw):
    feed_twice(**draw)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_frames")
@pytest.mark.timeout(1200)
@settings(max_examples=200, **_ANY_TIME)
@_any_feeds
def test_two_hundred_draws(**draw):
    feed_twice(**draw)


def feed_twice(  # noqa: PLR0913, PLR0917 - what is drawn
    sizes, num_workers, batch_size, epochs, cache, start, limit, slots, shuffle, listed, rebalance, mishaps
):
    epochs = 1 if cache is None else epochs
    args = {"batch_size": batch_size, "epochs": epochs, "shuffle": shuffle}
    with (
        patch("tensorflowonspark.node.feed.order._LISTED_ROWS", listed),
        cluster_in_process(read, args, slots=slots, mishaps=mishaps, num_workers=num_workers) as cluster,
    ):
        # A bound holds what is kept, and would refuse it; a stream goes on with however little.
        bound = limit if cache is None else None
        for _ in range(2):
            data, how = partitions_of(sizes), {"rebalance": rebalance, "start": start}
            cluster.train(data, cache=cache, cache_limit=bound, feed_timeout=20, **how)
        results = cluster.join()
    for feed in range(2):
        assert_exactly_once([result[feed] for result in results.values()], sum(sizes), epochs)


def save_in_the_second_feed(args, ctx):
    import tensorflow as tf

    feeds = ctx.feeds()
    next(iter(next(feeds).batches(4)))  # the other rows are left
    rows = iter(next(feeds).batches(4))
    next(rows)
    ctx.checkpoint(args).save(tf.train.Checkpoint(weight=tf.Variable(1.0)), 1)


@pytest.mark.usefixtures("unchecked_frames")
def test_a_stream_can_be_saved_after_a_feed_that_was_left_in_its_first_pass(tmp_path):
    with cluster_in_process(save_in_the_second_feed, str(tmp_path), num_workers=1) as cluster:
        cluster.train(partitions_of([20, 20]), start="first_rows", feed_timeout=20)
        cluster.train(partitions_of([20]), cache=None, feed_timeout=20)
        cluster.join()
    assert [path.name.split("-")[1] for path in tmp_path.iterdir()] == ["00000001"]


# ---- held clusters, whose tasks feed their own nodes


def marked(partitions, every):
    """Return partitions with a column that marks each so manieth row, to validate on."""

    def mark(batch):
        marks = pa.array([each % every == 0 for each in batch["id"].to_pylist()])
        return batch.append_column("held_out", marks)

    return [[mark(batch) for batch in batches] for batches in partitions]


def read_held(args, ctx):
    """Pass over the rows, and over those to validate on after each epoch."""
    feed = ctx.feed()
    options = {"features": ["x", "id"], "shuffle": args["shuffle"]}
    epochs = feed.batches(args["batch_size"], **options)
    passes = [[], []]
    for _ in range(2):
        splits = [epochs, *([feed.validation.batches(args["batch_size"], **options)] if feed.validation else [])]
        for split, found in zip(splits, passes, strict=False):
            batches = list(split)
            ids = [row for batch in batches for row in batch["id"][~np.signbit(batch["sample_weight"])].tolist()]
            found.append((len(batches), ids))
    return passes


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(max_examples=100, **_ANY_TIME)
@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) > 1),
    batch_size=st.integers(3, 50),
    start=st.sampled_from(["all_rows", "first_rows"]),
    first_part=st.sampled_from([1, 300, 1 << 20]),
    validates=st.sampled_from([0, 2, 7]),
    shuffle=st.booleans(),
    shares_files=st.booleans(),
)
def test_a_hundred_draws_of_held_clusters(
    monkeypatch, sizes, batch_size, start, first_part, validates, shuffle, shares_files
):
    monkeypatch.setattr(feeder, "can_share_files", lambda: shares_files)
    monkeypatch.setattr(feeder, "_FIRST_PART_BYTES", first_part)
    partitions, validation = partitions_of(sizes), None
    if validates:
        partitions, validation = marked(partitions, validates), "held_out"
    args = {"batch_size": batch_size, "shuffle": shuffle}
    how = {"validation": validation, "start": start, "rebalance": start == "all_rows"}
    results = run_in_process(read_held, args, partitions, **how).values()
    chosen = [[row for row in range(sum(sizes)) if bool(validates) and row % validates == 0]]
    chosen.insert(0, [row for row in range(sum(sizes)) if row not in chosen[0]])
    for split in range(1 + bool(validates)):
        for epoch in range(2):
            passes = [result[split][epoch] for result in results]
            assert sorted(row for _, ids in passes for row in ids) == chosen[split]
            assert len({steps for steps, _ in passes}) == 1


def test_a_held_node_trains_before_its_task_has_sent_the_rest(monkeypatch, tmp_path):
    monkeypatch.setattr(feeder, "_FIRST_PART_BYTES", 1)

    def program(directory, ctx):
        feed = ctx.feed()
        batches = iter(feed.batches(4))
        next(batches)
        known = feed.rows
        Path(directory, str(ctx.index)).touch()
        steps = 1 + sum(1 for _ in batches)
        return known, steps, sum(batch["id"].size for batch in feed.batches(4))

    def slowly(batches):
        yield batches[0]
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, 20)  # both programs have taken a step
        yield from batches[1:]

    partitions = [slowly(each) for each in partitions_of([21, 21])]
    results = run_in_process(program, str(tmp_path), partitions, start="first_rows")
    assert list(results.values()) == [(None, 11, 21)] * 2


def test_a_bad_row_of_a_held_partition_is_named_by_its_place_in_it(monkeypatch):
    monkeypatch.setattr(feeder, "_FIRST_PART_BYTES", 1)
    (batches,) = partitions_of([30])
    batches[3] = pa.record_batch({"x": batches[3]["x"], "id": pa.array([None] * 7, pa.int64())})

    def program(ctx):
        return [len(batch["id"]) for batch in ctx.feed().batches(5, features="id")]

    with pytest.raises(tfos.NodeError, match=r"column 'id' holds 7 nulls, the first in row 21 of partition 0"):
        run_in_process(program, None, [batches], start="first_rows")


def test_a_held_program_that_returns_early_ends_the_feed():
    partitions = partitions_of([2000, 2000])
    results = run_in_process(lambda ctx: len(next(iter(ctx.feed().batches(4)))), None, partitions, start="first_rows")
    assert set(results) == {"worker:0", "worker:1"}
