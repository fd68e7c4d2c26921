"""Copies of checkpoints on a second host, from which a restart goes on without the first one and the directory."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import tensorflowonspark as tfos

_LAST = 6  # the step that copies alone have


def train(directory, ctx):
    """Count steps in a variable, beside a table that is divided among the workers."""
    import keras
    import tensorflow as tf

    checkpoint = ctx.checkpoint(directory, copies=1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        weight = tf.Variable(0.0)
        state = tf.train.Checkpoint(weight=weight)
        layer = tfos.keras.ShardedEmbedding(6, 2, name="table")
        state.model = keras.Sequential([keras.Input((1,), dtype="int64"), layer])
    first = checkpoint.restore(state)
    rows = layer.lookup(range(6)).tolist()
    print("rows", rows, flush=True)
    for step in range(first + 1, 10):
        weight.assign_add(1.0)
        checkpoint.save(state, step)
        if ctx.attempt:
            if step == _LAST + 1 and ctx.is_chief:
                os.unlink(directory)
                os.rename(f"{directory}-away", directory)
            continue
        if step == 4:
            if ctx.is_chief:
                checkpoint.latest()
                os.rename(directory, f"{directory}-away")
                Path(directory).write_text("no directory")
            else:
                while os.path.isdir(directory):
                    time.sleep(0.1)
        if step == _LAST:
            checkpoint._saving._writer.wait()
            if not ctx.is_chief:
                Path(f"{directory}-done-{ctx.index}").touch()
                time.sleep(300)
            while not all(os.path.exists(f"{directory}-done-{index}") for index in range(1, ctx.num_workers)):
                time.sleep(0.1)
            # It takes with it what a host does that vanishes.
            shutil.rmtree(ctx._setup.run_directory)
            os.kill(os.getpid(), signal.SIGKILL)
    return first, float(weight.numpy()), rows


def drive(spark, directory):
    logs = tfos.Logs(show="all")  # and a worker on each host: a restart may leave out none that has copies
    return tfos.run(spark, train, directory, num_workers=3, restarts=1, logs=logs, heartbeat_timeout=8.0)


@pytest.mark.timeout(400)
def test_a_restart_has_what_the_chiefs_host_and_the_directory_have_lost(cluster):
    driver = cluster.start(drive, str(cluster.shared / "copied"), seconds=300)
    results = driver.result()
    assert [each[:2] for each in results.values()] == [(_LAST, 9.0)] * 3
    before = driver.output.partition("[worker:0] rows ")[2].splitlines()[0]
    assert [str(each[2]) for each in results.values()] == [before] * 3
