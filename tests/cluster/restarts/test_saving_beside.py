"""Checkpoints that are written while the training goes on: what a restart finds, and what waits for them."""

import os
import signal
import sys
import time
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.node.checkpoint.store import CheckpointStore

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]
_KILLED, _STEPS = 4, 6


def slow_store(seconds):
    """Have each file of a checkpoint take so long."""
    write = CheckpointStore._write

    def write_slowly(*given):
        time.sleep(seconds)
        return write(*given)

    CheckpointStore._write = write_slowly


def killed_after_a_save(args, ctx):
    """Take steps of which each depends on those before, and save after each; one worker is killed when it has."""
    import keras

    from tensorflowonspark.keras.workers import combine

    if not ctx.attempt:
        slow_store(args["seconds"])
    on_jax = keras.backend.backend() == "jax"
    with nullcontext() if on_jax else ctx.strategy().scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((1,)), dense])
    state = model
    if not on_jax:
        import tensorflow as tf

        state = tf.train.Checkpoint(model=model)
    checkpoint = ctx.checkpoint(args["directory"])
    first = checkpoint.restore(state)
    restored = float(dense.kernel.numpy()[0, 0])
    for step in range(first + 1, _STEPS + 1):
        combine("step", step)  # as gradients are
        dense.kernel.assign(dense.kernel * 2 + step)
        checkpoint.save(state, step)
        if not ctx.attempt and step == _KILLED and ctx.index == args["killed"]:
            os.kill(os.getpid(), signal.SIGKILL)
    return first, restored, float(dense.kernel.numpy()[0, 0])


@pytest.mark.parametrize(
    ("workers", "killed", "seconds", "found", "env"),
    [
        pytest.param(1, 0, 0.0, {3, 4}, {}, marks=pytest.mark.smoke, id="at any moment"),
        pytest.param(1, 0, 0.4, {3}, {}, id="before it is complete"),
        pytest.param(2, 0, 0.4, {3}, {}, marks=pytest.mark.slow, id="the chief"),
        # It does not wait for the chief, which may be about to save after the same step.
        pytest.param(2, 1, 0.1, {2, 3, 4}, {}, marks=pytest.mark.slow, id="another worker"),
        pytest.param(2, 0, 0.4, {3}, {"KERAS_BACKEND": "jax"}, marks=pytest.mark.slow, id="jax"),
    ],
)
def test_a_node_that_is_killed_right_after_a_save_leaves_a_whole_checkpoint(
    spark, tmp_path, workers, killed, seconds, found, env
):
    args = {"directory": str(tmp_path / "kept"), "killed": killed, "seconds": seconds}
    results = tfos.run(spark, killed_after_a_save, args, num_workers=workers, restarts=1, env=env)
    weights = [0.0, *accumulate(range(1, _STEPS + 1), lambda weight, step: 2 * weight + step, initial=0)][1:]
    for first, restored, last in results.values():
        assert first in found
        assert (restored, last) == (weights[first], weights[_STEPS])
    assert [saved.step for saved in CheckpointStore(args["directory"], 3).complete()] == [4, 5, 6]


def ended(args, ctx):
    """Save twice, the second time to a directory that is gone meanwhile; end as is asked for."""
    import tensorflow as tf

    checkpoint = ctx.checkpoint(args["directory"])
    checkpoint.save(tf.train.Checkpoint(weight=tf.Variable(0.0)), 1)
    assert ctx.checkpoint(args["directory"]).latest().step == 1
    os.rename(args["directory"], f"{args['directory']}-away")
    Path(args["directory"]).write_text("no directory")
    checkpoint.save(tf.train.Checkpoint(weight=tf.Variable(0.0)), 2)
    if args["end"] == "raises":
        raise KeyError("of the program itself")
    if args["end"] == "exits":
        sys.exit(0)
    return "a result"


@pytest.mark.parametrize(
    ("end", "message"),
    [("returns", "CheckpointError: .*NotADirectory"), ("exits", "CheckpointError: .*NotADirectory"),
     ("raises", "KeyError: 'of the program itself'")],
)  # fmt: skip
def test_a_program_whose_last_checkpoint_is_not_written_has_failed(spark, tmp_path, end, message):
    with pytest.raises(tfos.NodeError, match=message) as caught:
        tfos.run(spark, ended, {"directory": str(tmp_path / "kept"), "end": end}, num_workers=1)
    assert caught.value.cause == "raised"
    assert [saved.step for saved in CheckpointStore(f"{tmp_path}/kept-away", 3).complete()] == [1]


def saving_each_feed(directory, ctx):
    """Save to a slow store after each feed, by an object of its own."""
    import tensorflow as tf

    slow_store(0.3)
    for number, feed in enumerate(ctx.feeds()):
        rows = sum(int(batch["id"].size) for batch in feed.batches(8))
        ctx.checkpoint(directory).save(tf.train.Checkpoint(rows=tf.Variable(rows)), number + 1)


def test_what_a_feed_has_taught_is_kept_when_train_returns(spark, tmp_path):
    with tfos.Cluster(spark, saving_each_feed, str(tmp_path), num_workers=1) as cluster:
        for number in range(2):
            cluster.train(spark.range(16))
            assert CheckpointStore(str(tmp_path), 1).latest().step == number + 1
