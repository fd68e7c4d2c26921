"""TFRecord files that are read in each epoch: passes that break off, begin elsewhere, or find what can't be read."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def files(spark, tmp_path_factory):
    """The rows 0 to 499 in five files, which two workers share as 300 and 200."""
    path = tmp_path_factory.mktemp("uncounted")
    frame = small_frame(spark, [100] * 5)
    tfos.write_tfrecord(frame, str(path / "records"))
    yield path / "records"
    shutil.rmtree(path)


def fit(args, ctx):
    """Fit for two epochs with checkpoints; worker 1 is killed in the midst of the first one, once."""
    import keras
    import tensorflow as tf

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            marker = Path(args["marker"])
            if batch == 7 and ctx.index == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    keras.utils.set_random_seed(3)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        # Batches of 20 rows divide the shares, and there is no BatchNorm: both passes have the same rows in each step,
        # but not the same padding.
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    feed = ctx.read_tfrecord(args["records"], cache=None, cache_limit=10_000)
    dataset = feed.dataset(40, features="features", label="label", shapes={"features": (3,)})
    checkpoint = ctx.checkpoint(args["directory"])
    model.fit(dataset, epochs=2, verbose=0, callbacks=[Kill(), checkpoint.callback(every=3)])
    steps = feed.steps(40)
    return [each.numpy() for each in model.weights], int(model.optimizer.iterations.numpy()), steps


def test_an_epoch_that_counts_the_rows_is_resumed_within_it(spark, files, tmp_path):
    def run(name, **options):
        args = {"records": str(files), "directory": str(tmp_path / name), "marker": str(tmp_path / f"{name}.killed")}
        if not options:
            Path(args["marker"]).touch()
        with tfos.Cluster(spark, fit, args, num_workers=2, **options) as cluster:
            return cluster.join()

    unbroken, broken = run("unbroken"), run("broken", restarts=1)
    for name, (weights, iterations, steps) in broken.items():
        assert iterations == unbroken[name][1] == 2 * steps
        assert steps == 15
        for mine, theirs in zip(weights, unbroken[name][0], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def ids_of(batches):
    return [batch["id"][batch["sample_weight"] != 0].tolist() for batch in batches]


def leave(args, ctx):
    """Leave the first pass; take two whole ones, and one of another dataset, which begins in the second epoch."""
    feed = ctx.read_tfrecord(args, columns=["id"], cache=None, cache_limit=1_000)
    batches = feed.batches(20, features=["id"], seed=1)
    first, before = next(iter(batches))["id"].tolist(), feed.rows
    epochs = ids_of(batches), ids_of(batches)
    rest = ids_of(feed.batches(20, features=["id"], seed=1, first_step=feed.steps(20) + 2))
    return {"before": before, "first": first, "epochs": epochs, "rest": rest, "total": feed.total_rows}


def test_passes_that_are_left_and_passes_that_begin_elsewhere(spark, files):
    results = tfos.run(spark, leave, str(files), num_workers=2).values()
    for result in results:
        assert (result["before"], result["total"]) == (None, 500)
        assert result["epochs"][0][0] == result["first"]
        assert result["epochs"][1][2:] == result["rest"]
        assert result["epochs"][0] != result["epochs"][1]
    for epoch in range(2):
        steps = [result["epochs"][epoch] for result in results]
        assert len({len(each) for each in steps}) == 1
        assert sorted(number for each in steps for step in each for number in step) == list(range(500))


def test_no_worker_waits_for_one_that_has_returned(spark, files, tmp_path):
    """Nor an evaluator, which reads all rows, for any."""

    def program(args, ctx):
        feed = ctx.read_tfrecord(args["records"], columns=["id"], cache=None, cache_limit=1_000)
        batches = feed.batches(20, features=["id"])
        if ctx.index:
            return len(next(iter(batches))["id"])
        rows = [sum(map(len, ids_of(batches))) for _ in range(2)]
        if ctx.job == "evaluator":
            args["evaluated"].with_suffix(".half").write_text(str(rows))
            args["evaluated"].with_suffix(".half").rename(args["evaluated"])
        while not args["evaluated"].exists():
            time.sleep(0.05)
        return rows, args["evaluated"].read_text()

    args = {"records": str(files), "evaluated": tmp_path / "evaluated"}
    results = tfos.run(spark, program, args, num_workers=2, evaluator=True)
    assert results["worker:0"][1] == "[500, 500]"
    assert results["worker:1"] == 10
    assert results["worker:0"][0] in ([200, 200], [300, 300])


def truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("harm", "after", "message"),
    [
        (truncate, 0, r"worker:. on .* failed: .*{name}, byte \d+: .*ends within"),
        (truncate, 1, r"{name} had \d+ bytes when it was listed, and has \d+: it has changed since"),
        (Path.unlink, 1, r"{name} can't be read any more: .*No such file"),
    ],
    ids=["truncated", "changed", "gone"],
)
def test_what_can_not_be_read_ends_all_workers(spark, files, tmp_path, harm, after, message):
    """One worker finds it, and the other one waits for its steps."""
    harmed = tmp_path / "records"
    shutil.copytree(files, harmed)
    path = sorted(harmed.glob("part-*"))[-1]

    def program(args, ctx):
        feed = ctx.read_tfrecord(str(args["records"]), columns=["id"], cache=None, cache_limit=1_000)
        batches = feed.batches(20, features=["id"])
        for epoch in range(3):
            if epoch == args["after"] and ctx.index == 0 and not args["marker"].exists():
                harm(path)
                args["marker"].touch()
            while epoch == args["after"] and not args["marker"].exists():
                time.sleep(0.01)
            ids_of(batches)

    args = {"records": harmed, "after": after, "marker": tmp_path / "harmed"}
    if not after:
        harm(path)
        args["marker"].touch()
    with pytest.raises(tfos.NodeError, match=message.format(name=path.name)):
        tfos.run(spark, program, args, num_workers=2)
