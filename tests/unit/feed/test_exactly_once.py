"""Every row exactly once per epoch, as many steps on all workers, and no hang, whatever is fed in whatever way."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.inprocess import cluster_in_process, partitions_of


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


@pytest.mark.usefixtures("unchecked_frames")
@pytest.mark.timeout(600)
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any),
    num_workers=st.integers(1, 3),
    batch_size=st.integers(3, 50),
    epochs=st.integers(1, 3),
    cache=st.sampled_from(["disk", "memory", None]),
    start=st.sampled_from(["all_rows", "first_rows"]),
    limit=st.sampled_from([None, 1, 2000]),
    slots=st.integers(1, 3),
    shuffle=st.booleans(),
    rebalance=st.booleans(),
    mishaps=st.dictionaries(
        st.integers(0, 5), st.sampled_from(["before the end", "after the end", "elsewhere"]), max_size=2
    ),
)
def test_two_hundred_draws(  # noqa: PLR0913, PLR0917 - what is drawn
    sizes, num_workers, batch_size, epochs, cache, start, limit, slots, shuffle, rebalance, mishaps
):
    epochs = 1 if cache is None else epochs
    args = {"batch_size": batch_size, "epochs": epochs, "shuffle": shuffle}
    with cluster_in_process(read, args, slots=slots, mishaps=mishaps, num_workers=num_workers) as cluster:
        # A bound holds what is kept, and would refuse it; a stream goes on with however little.
        bound = limit if cache is None else None
        for _ in range(2):
            data, how = partitions_of(sizes), {"rebalance": rebalance, "start": start}
            cluster.train(data, cache=cache, cache_limit=bound, timeout=20, **how)
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
        cluster.train(partitions_of([20, 20]), start="first_rows", timeout=20)
        cluster.train(partitions_of([20]), cache=None, timeout=20)
        cluster.join()
    assert [path.name.split("-")[1] for path in tmp_path.iterdir()] == ["00000001"]
