"""Rows of a feed that reach TensorFlow's strategies other than through ``ctx.dataset``: none is dropped."""

import pytest

import tensorflowonspark as tfos
from programs import small_frame

_ROWS = 61  # uneven: one worker has 31, and batches of 8 do not divide them


def ways(args, ctx):
    """Bring the worker's rows into a strategy in many ways; return the ids that this worker got in each."""
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    data = tf.data.Dataset
    columns = {"features": "features", "label": "id"}
    batches = ctx.batches(8, **columns)
    ours = ctx.dataset(8, **columns)
    rows, number = tf.TensorSpec((None,), tf.float32), tf.TensorSpec((None,), tf.int64)
    specs = (tf.TensorSpec((None, 3), tf.float32), number, rows)

    def generator():
        yield from batches

    def of(function):
        return data.from_generator(function, output_signature=specs)

    def local(values):
        return strategy.experimental_local_results(values)[0]

    datasets = {
        "batches": lambda: of(batches),
        "generator": lambda: of(generator).map(lambda x, y, w: (x * 2, y, w)).prefetch(1),
        "captured": lambda: data.range(1).interleave(lambda _: ours.map(lambda *row: row)),
        "flat map": lambda: ours.flat_map(lambda *row: data.from_tensors(row)),
        "inside": lambda: data.range(1).flat_map(lambda _: ctx.dataset(8, **columns)),
        "a generator inside": lambda: data.range(1).flat_map(lambda _: of(generator)),
        "two levels": lambda: data.range(1).flat_map(lambda _: data.range(1).flat_map(lambda _: ours)),
        "iterated": lambda: of(lambda: iter(ctx.dataset(8, **columns))),
        "zip": lambda: data.zip(data.range(10_000), of(batches)).map(lambda _, batch: batch),
        "concatenate": lambda: of(batches).concatenate(ours.take(0)),
        "choice": lambda: data.choose_from_datasets([of(batches), ours], data.range(1).repeat(100)),
    }
    seen = {}
    for name, make in datasets.items():
        found = [map(local, batch[1:]) for batch in strategy.experimental_distribute_dataset(make())]
        seen[name] = [int(number) for y, weight in found for number in y[weight > 0]]
    for name, make in {"fit, a generator": generator, "fit, batches": lambda: iter(batches)}.items():
        seen[name] = ids_in_fit(strategy, make())

    # What is not a feed's stays TensorFlow's to divide.
    whole = data.from_generator(lambda: range(20), output_signature=tf.TensorSpec((), tf.int64)).batch(4)
    seen["own"] = np.concatenate([local(each) for each in strategy.experimental_distribute_dataset(whole)]).tolist()
    return seen


def ids_in_fit(strategy, data):
    """Return the ids of the rows that reach a step of ``fit``."""
    import keras
    import tensorflow as tf

    ids = []

    class Recorder(keras.Model):
        def train_step(self, data):
            _, y, weight = data
            ids.extend(int(number) for number in y[weight > 0])
            return {"loss": tf.constant(0.0)}

        def call(self, x):
            return x

    with strategy.scope():
        model = Recorder()
        model.compile(run_eagerly=True)
    model.fit(data, verbose=0)
    return ids


@pytest.mark.masters("local")
def test_no_row_is_dropped_on_any_way_into_a_strategy(spark):
    results = tfos.run(spark, ways, workers=2, data=small_frame(spark, [40, _ROWS - 40]))
    one, two = results["worker:0"], results["worker:1"]
    assert sorted(one.pop("own") + two.pop("own")) == list(range(20))
    got = {name: sorted(one[name] + two[name]) for name in one}
    assert got == {name: list(range(_ROWS)) for name in one}


@pytest.mark.masters("local")
def test_a_generator_that_reads_a_feed_later_is_refused(spark):
    """Nothing shows beforehand that these rows are one worker's: the error has the line that mends it."""

    def program(args, ctx):
        import tensorflow as tf

        batches = ctx.batches(4)

        def generator():
            yield -1
            for batch in batches:
                yield from batch["id"]

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        dataset = tf.data.Dataset.from_generator(generator, output_signature=tf.TensorSpec((), tf.int64)).batch(4)
        if args == "off":
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
            dataset = dataset.with_options(options)
        batches = strategy.experimental_distribute_dataset(dataset)
        return [int(each) for batch in batches for each in strategy.experimental_local_results(batch)[0]]

    with pytest.raises(tfos.NodeError, match="would be dropped.*auto_shard_policy = tf.data.experimental.AutoShard"):
        tfos.run(spark, program, workers=2, data=spark.range(0, 20, 1, 2))
    rows = tfos.run(spark, program, "off", workers=2, data=spark.range(0, 20, 1, 2)).values()
    assert set(sum(rows, [])) == {-1, *range(20)}
