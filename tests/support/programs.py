"""Programs of a user that several tests train with, and the DataFrames that they are fed."""

import os
import signal
import sys
import time
from contextlib import nullcontext

import numpy as np
from pyspark.sql import functions as f


def small_frame(spark, sizes):
    """Return a DataFrame with partitions of these sizes: features (3 floats), label, id."""
    starts = np.cumsum([0, *sizes]).tolist()
    first, end = (f.array(*map(f.lit, each))[f.col("partition").cast("int")] for each in (starts[:-1], starts[1:]))
    numbers = f.filter(f.sequence(first.cast("long"), end.cast("long")), lambda number: number < end)
    partitions = spark.range(0, len(sizes), 1, len(sizes)).withColumnRenamed("id", "partition")
    frame = partitions.select(f.explode(numbers).alias("id"), f.col("partition").cast("int").alias("partition"))
    features = f.array(*[f.sin(f.col("id") * (k + 1)).cast("float") for k in range(3)])
    return frame.select(features.alias("features"), (f.col("id") % 7).cast("float").alias("label"), "id")


def small_model():
    """Return a compiled model with all that several workers must agree on: weights, BatchNorm, an optimizer."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", weighted_metrics=["mae"])
    return model


def network_of_two(ctx, *, on_jax):
    """Return a compiled network of two inputs and one output, the same in each process."""
    import keras

    keras.utils.set_random_seed(7)
    with nullcontext() if on_jax else ctx.strategy().scope():
        layers = [keras.Input((2,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.02), "mse", jit_compile=False)
    return model


def killer(ctx, victim, began):
    """Return a callback that notes each epoch in `began`, and kills a worker in the third one of the first attempt."""
    import keras

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if began[-1] == 2 and batch == 2 and ctx.index == victim and not ctx.attempt:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_begin(self, epoch, logs=None):
            began.append(epoch)

    return Kill()


def killer_at_step(ctx, step, victim):
    """Return a callback that kills a worker after a step of the first attempt, counted over all epochs."""
    import keras

    class Kill(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == step and ctx.index == victim and not ctx.attempt:
                os.kill(os.getpid(), signal.SIGKILL)

    return Kill()


def count_rows(directory, ctx):
    """Count each of 100 rows in 25 steps of ten, be killed after a checkpoint, and go on; return the counts."""
    import tensorflow as tf

    seen = tf.Variable(tf.zeros(100, tf.int64))
    state = tf.train.Checkpoint(seen=seen)
    checkpoint = ctx.checkpoint(directory)
    step = checkpoint.restore(state)
    rows = ctx.dataset(10, first_step=step)
    while step < 25:
        for batch in rows:
            seen.assign_add(tf.math.bincount(batch["id"], minlength=100, maxlength=100, dtype=tf.int64))
            step += 1
            if step == 13:
                checkpoint.save(state, step)
            if step == 15 and ctx.attempt == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 25:
                break
    return seen.numpy().tolist()


def put(spark, directory, start, stop):
    """Add a file with these ids; it appears at once, as streams need it."""
    spark.range(start, stop).coalesce(1).write.mode("append").parquet(str(directory))


def stream_of(spark, directory):
    """Return the files of a directory as a stream, one in a micro-batch."""
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(directory))


def fit(args, ctx):
    """Fit the small model; return all that the tests compare between the workers."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(3)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = small_model()
    feed = ctx.feed()
    seen = []
    history = model.fit(
        feed.dataset(args["batch_size"], features="features", label="label"),
        epochs=args.get("epochs", 2),
        verbose=0,
    )
    for _, y, weight in feed.dataset(args["batch_size"], features="features", label="id"):
        seen.extend(int(number) for number, real in zip(y, weight, strict=True) if real)
    return {
        "rows": feed.rows,
        "seen": seen,
        "loss": history.history["loss"],
        "weights": [np.asarray(weight.numpy()) for weight in model.weights],
        "steps": int(model.optimizer.iterations.numpy()),
    }


def read(args, ctx):
    """Pass over each feed once; return the ids of each, and how many steps it took."""
    feeds = []
    for feed in ctx.feeds():
        ids, steps = [], 0
        for batch in feed.batches(args.get("batch_size", 10), features=["id"])():
            ids += batch["id"][~np.signbit(batch["sample_weight"])].tolist()
            steps += 1
        feeds.append((ids, steps))
    return feeds


def all_ids(results, feed=0):
    """Return the ids that all nodes have read of a feed."""
    return sorted(row for feeds in results.values() for row in feeds[feed][0])


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_warm():
    """Return whether this process is a node that was forked from a fork server."""
    return open("/proc/self/comm").read().startswith("tfos-")


def look(args, ctx):
    """Tell whether TensorFlow was there from the start, and use it as programs do."""
    began_warm = "tensorflow" in sys.modules
    import tensorflow as tf

    return began_warm, int(tf.reduce_sum(tf.range(4)))
