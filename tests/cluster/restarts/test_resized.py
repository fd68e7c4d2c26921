"""Trainings that go on within an epoch with more workers, or with fewer: each row counts once in each epoch."""

import os
import signal
from functools import partial

import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos

pytestmark = [pytest.mark.masters("local"), pytest.mark.slow, pytest.mark.timeout(300)]
ROWS, EPOCHS, BATCH = 230, 2, 12


def train(args, ctx):
    """Train a model that counts in its weights how often it has seen each row; return what it has counted."""
    import keras
    import tensorflow as tf

    class Counted(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return -y_pred

    class Killer(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == args["dies"] and ctx.index == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        counts = keras.layers.Embedding(ROWS, 1, "zeros")
        model = keras.Sequential([keras.Input((), dtype="int32"), counts, keras.layers.Flatten()])
        model.compile(keras.optimizers.SGD(1.0), Counted(reduction="sum"), jit_compile=False)
    feed = getattr(ctx, args["read"])(args["files"], cache=args["cache"]) if args["files"] else ctx.feed()
    dataset = feed.dataset(BATCH, features="id", label="label", shuffle=args["shuffle"])
    checkpoint = ctx.checkpoint(args["directory"])
    began = []
    note = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: began.append(batch))
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[checkpoint.callback(every=5), note, Killer()])
    return began[0], len(began), counts.get_weights()[0][:, 0].astype(int).tolist()


WAYS = {
    "train": {"feeds": True},
    "run": {"feeds": True, "held": True},
    "in order": {"feeds": True, "held": True, "shuffle": False},
    "first rows": {"feeds": True, "held": True, "start": "first_rows", "dies": 28},  # in the second epoch
    "parquet": {"read": "read_parquet"},
    "parquet anew": {"read": "read_parquet", "cache": None},
    "tfrecord": {"read": "read_tfrecord"},
}


@pytest.fixture
def rows(spark):
    return spark.range(0, ROWS, 1, 12).select("id", f.lit(0.0).alias("label"))


def run(spark, rows, args, workers, way):
    """Run a cluster; return what its first worker does."""
    if way.get("held") or not way.get("feeds"):
        data = tfos.Data(rows, start=way["start"]) if way.get("feeds") else None
        return tfos.run(spark, train, args, num_workers=workers, data=data)["worker:0"]
    with tfos.Cluster(spark, train, args, num_workers=workers) as cluster:
        cluster.train(rows, feed_timeout=60)
        return cluster.shutdown()["worker:0"]


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
@pytest.mark.parametrize("name", WAYS)
def test_each_row_counts_once_in_each_epoch(spark, rows, tmp_path, name, before, after):
    way = {"shuffle": True, "cache": "disk", "start": "all_rows", "dies": 7, **WAYS[name]}
    args = {**way, "files": "", "directory": str(tmp_path / "checkpoints")}
    if not way.get("feeds"):
        args["files"] = str(tmp_path / "files")
        write = rows.write.parquet if way["read"] == "read_parquet" else partial(tfos.write_tfrecord, rows)
        write(args["files"])
    with pytest.raises(tfos.NodeError, match="worker:1 .* ended by SIGKILL"):
        run(spark, rows, args, before, way)
    first, steps, counts = run(spark, rows, {**args, "dies": 0}, after, way)
    assert counts == [EPOCHS] * ROWS
    assert first > 0
    assert steps == pytest.approx(EPOCHS * ROWS / BATCH - way["dies"], abs=6)
