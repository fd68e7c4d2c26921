"""Copies of checkpoints on executors, from which restarts go on."""

import os
import signal
import time
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.node.checkpoint.store import CheckpointStore
from tests.support.programs import wait_for

pytestmark = [pytest.mark.timeout(240)]
VANISHES, FAILS = 4, 6  # after which steps the directory can't be reached, and the chief is killed


def close(directory):
    """Have a directory that can be neither read nor written."""
    os.rename(directory, f"{directory}-away")
    Path(directory).write_text("no directory")


def open_again(directory):
    os.unlink(directory)
    os.rename(f"{directory}-away", directory)


def made(kind):
    """Return a state, and a variable in it."""
    import keras

    if kind == "jax":
        model = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(1.0)])
        return model, model.add_weight((), "zeros", name="weight")
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        weight = tf.Variable(0.0)
        state = tf.train.Checkpoint(weight=weight)
        if kind == "table":
            layer = tfos.keras.ShardedEmbedding(6, 2, name="table")
            state.model = keras.Sequential([keras.Input((1,), dtype="int64"), layer])
    return state, weight


def train(args, ctx):
    """Count steps in a variable that all workers train together, with a table that they divide or on JAX."""
    checkpoint = ctx.checkpoint(args["directory"], keep=1, wait=args["wait"], copies=1)
    state, weight = made(args["state"])
    first = checkpoint.restore(state)
    restored = float(weight.numpy())
    for step in range(first + 1, args["steps"] + 1):
        weight.assign(weight + 1.0)
        checkpoint.save(state, step)
        if not ctx.attempt and step == VANISHES:
            if ctx.is_chief:
                checkpoint.latest()  # which is complete
                close(args["directory"])
            else:
                while os.path.isdir(args["directory"]):
                    time.sleep(0.1)
        if not ctx.attempt and step == FAILS:
            checkpoint._saving._writer.wait()
            done = Path(f"{args['directory']}-{ctx.role}")
            done.touch()
            while len(list(done.parent.glob("kept-worker*"))) < ctx.num_workers:
                time.sleep(0.1)
            if ctx.is_chief:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(100)
        if ctx.attempt and step == FAILS + 1 and ctx.is_chief:
            open_again(args["directory"])
    return first, restored, float(weight.numpy()), ctx._setup.run_directory


@pytest.mark.parametrize(("wait", "state"), [(True, ""), (False, ""), (False, "table"), (False, "jax")])
@pytest.mark.masters("local-cluster")
def test_a_restart_goes_on_from_copies_if_the_directory_cant_be_reached(spark, tmp_path, wait, state):
    args = {"directory": str(tmp_path / "kept"), "steps": 9, "wait": wait, "state": state}
    env = {"KERAS_BACKEND": "jax"} if state == "jax" else {}
    results = tfos.run(spark, train, args, num_workers=2, restarts=1, env=env)
    assert [each[:3] for each in results.values()] == [(FAILS, FAILS, 9.0)] * 2
    assert [saved.step for saved in CheckpointStore(args["directory"], 1).complete()] == [9]
    assert not any(Path(each[3]).exists() for each in results.values())


def fail(directory, ctx):
    import tensorflow as tf

    checkpoint = ctx.checkpoint(directory, copies=1)
    checkpoint.save(tf.train.Checkpoint(weight=tf.Variable(0.0)), 1)
    assert checkpoint.latest().step == 1
    assert list(Path(ctx._setup.run_directory).rglob("step-*"))
    Path(f"{directory}-place").write_text(ctx._setup.run_directory)
    raise RuntimeError("a failure that no restart follows")


@pytest.mark.masters("local")
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_cluster_that_fails_leaves_no_copies(spark, tmp_path, restarts):
    policy = tfos.RestartPolicy(restarts, backoff=0.1, causes=("raised",))
    with pytest.raises(tfos.NodeError, match="that no restart follows"):
        tfos.run(spark, fail, str(tmp_path / "kept"), num_workers=1, restarts=policy)
    place = Path((tmp_path / "kept-place").read_text())
    wait_for(lambda: not place.exists())
