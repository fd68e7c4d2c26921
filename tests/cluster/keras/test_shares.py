"""Rows of a feed that reach TensorFlow's strategies other than through ``ctx.dataset``: none is dropped."""

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame

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
        "saved": lambda: (ours.save(f"{ctx.scratch}/rows"), data.load(f"{ctx.scratch}/rows"))[1],
        "not known to be as long on one worker": lambda: ours.take(1000) if ctx.index else ours,
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


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.masters("local")
def test_no_row_is_dropped_on_any_path_into_a_strategy(spark):
    results = tfos.run(spark, ways, num_workers=2, data=small_frame(spark, [40, _ROWS - 40]))
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
        distributed = strategy.experimental_distribute_dataset(dataset)
        return [int(each) for batch in distributed for each in strategy.experimental_local_results(batch)[0]]

    with pytest.raises(tfos.NodeError, match="would be dropped.*auto_shard_policy = tf.data.experimental.AutoShard"):
        tfos.run(spark, program, num_workers=2, data=spark.range(0, 20, 1, 2))
    rows = tfos.run(spark, program, "off", num_workers=2, data=spark.range(0, 20, 1, 2)).values()
    assert set(sum(rows, [])) == {-1, *range(20)}


@pytest.mark.slow
@pytest.mark.masters("local")
def test_a_state_for_each_row_and_a_batch_of_other_rows(spark):
    """Keras fails with it in one process as well; of several workers the error has both numbers."""

    def program(args, ctx):
        import keras
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            layers = [keras.layers.Reshape((3, 1)), keras.layers.LSTM(3, stateful=True), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((3,), batch_size=8), *layers])
            model.compile("sgd", "mse")
        dataset = ctx.dataset(16, features="features", label="label", shuffle=False)
        return model.fit(dataset.take(args) if args else dataset, epochs=2, verbose=0).history["loss"]

    one, two = tfos.run(spark, program, 2, num_workers=2, data=small_frame(spark, [20, 20])).values()
    assert one == two
    with pytest.raises(tfos.NodeError, match="SpecError: a step failed with a batch of 4 rows .* has batch_size=8"):
        tfos.run(spark, program, 0, num_workers=2, data=small_frame(spark, [20, 20]))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.masters("local")
def test_rows_that_reach_no_step_are_counted(spark):
    """What nothing but a count can see; what drops no row, or is meant to drop some, is not warned of."""

    def program(args, ctx):
        import warnings

        import keras
        import numpy as np
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        columns = {"features": "features", "label": "label"}

        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model.stop_training = True

        def fit(data, y=None, **options):
            with strategy.scope():
                model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.fit(data, y, verbose=0, **options)
            return [str(each.message) for each in caught if "its feed returned" in str(each.message)]

        def arrays():
            x, y, weights = map(np.concatenate, zip(*ctx.batches(8, **columns), strict=True))
            return x[weights > 0], y[weights > 0]

        ours = ctx.dataset(8, **columns)
        own = np.ones((4, 3), "f4"), np.ones(4, "f4")
        validation = ctx.dataset(8, **columns)
        return {
            "whole": fit(ours, epochs=2, validation_data=own),
            "validation": fit(ours, validation_data=validation),
            "filtered": fit(ours.unbatch().filter(lambda x, *_: x[0] > 0).batch(4)),
            "taken": fit(ours.take(2)),
            "steps": fit(ours.repeat(), steps_per_epoch=2),
            "stopped": fit(ours, callbacks=[Stop()]),
            "own": fit(*own),
            "sharded": fit(ours.shard(2, ctx.index), epochs=2),
            "arrays": fit(*arrays(), batch_size=8),
        }

    results = tfos.run(spark, program, num_workers=2, data=small_frame(spark, [40, 20]))
    for role, result in results.items():
        sharded, arrays = result.pop("sharded"), result.pop("arrays")
        assert result == {name: [] for name in result}
        assert len(sharded) == len(arrays) == 1
        assert sharded[0].startswith(f"{role}: its feed returned 30 rows, and ")
        assert "shard(...) is not needed" in sharded[0]
        assert arrays[0].startswith(f"{role}: its feed returned 30 rows, and 15 of them")
        assert "auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF" in arrays[0]


def every_kind(args, ctx):
    """Evaluate, fit and predict on data of every kind."""
    import keras
    import scipy.sparse
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    data = tf.data.Dataset
    x = np.arange(30, dtype="f4").reshape(10, 3) / 30
    y = x.sum(axis=1)

    def model(*layers):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            made = keras.Sequential([*layers, keras.layers.Dense(1)])
            made.compile("sgd", "mse")
        return made

    def rows_of_worker(context):
        part = slice(context.input_pipeline_id, None, context.num_input_pipelines)
        return data.from_tensor_slices((x[part], y[part])).batch(2)

    def summed(values):
        return tf.reduce_sum(values.to_tensor(), axis=1, keepdims=True)

    ragged = tf.RaggedTensor.from_row_lengths(np.arange(16, dtype="f4") / 16, [2, 1, 3, 1, 2, 1, 2, 1, 2, 1])
    sparse = tf.sparse.from_dense(x)

    parts = [tf.sparse.from_dense(x[start : start + 4]) for start in range(0, 10, 4)]
    parts = [tf.SparseTensor(part.indices[::-1], part.values[::-1], part.dense_shape) for part in parts]

    def unsorted():
        for number, part in enumerate(parts):
            yield part, y[number * 4 : number * 4 + 4]

    specs = tf.SparseTensorSpec((None, 3), tf.float32), tf.TensorSpec((None,), tf.float32)
    ragged_layers = keras.Input((None,), ragged=True), keras.layers.Lambda(summed, output_shape=(1,))
    kinds = {
        "dense": (model(keras.Input((3,))), data.from_tensor_slices((x, y)).batch(4), {}),
        "of a function": (model(keras.Input((3,))), strategy.distribute_datasets_from_function(rows_of_worker), {}),
        "sparse": (model(keras.Input((3,), sparse=True)), data.from_tensor_slices((sparse, y)).batch(4), {}),
        "sparse tensor": (model(keras.Input((3,), sparse=True)), sparse, {"batch_size": 4}),
        "scipy": (model(keras.Input((3,), sparse=True)), scipy.sparse.csr_matrix(x), {"batch_size": 4}),
        "unsorted": (
            model(keras.Input((3,), sparse=True)),
            data.from_generator(unsorted, output_signature=specs),
            {},
        ),
        "ragged": (model(*ragged_layers), data.from_tensor_slices((ragged, y)).batch(4), {}),
    }
    results = {}
    for name, (made, given, options) in kinds.items():
        labels = {"y": y} if options else {}
        before = made.evaluate(given, verbose=0, **labels, **options)
        loss = made.fit(given, verbose=0, shuffle=False, **labels, **options).history["loss"][0]
        results[name] = before, loss, np.asarray(made.predict(given, verbose=0, **options))

    def uneven():
        for size in [3, 1, 5, 2][: 4 - ctx.index]:
            yield x[:size]

    dense = kinds["dense"][0]
    batches = data.from_generator(uneven, output_signature=tf.TensorSpec((None, 3), tf.float32))
    alone = dense.predict(x, verbose=0) if ctx.is_chief else None
    return results, dense.predict(batches, verbose=0), alone, dense.predict_on_batch(x), dense(x).numpy()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.masters("local")
def test_data_of_every_kind_in_fit_evaluate_and_predict(spark):
    one, two = tfos.run(spark, every_kind, num_workers=2).values()
    assert list(one[0]) == list(two[0])
    for name, (before, loss, predicted) in one[0].items():
        assert (before, loss) == pytest.approx(two[0][name][:2]), name
        if name != "ragged":
            assert (before, loss) == pytest.approx(one[0]["dense"][:2], rel=1e-4), name
        assert len(predicted) == (5 if name == "of a function" else 10)
    assert len(one[1]) == 11
    assert len(two[1]) == 9
    for result in one[2], one[3], two[3]:
        np.testing.assert_allclose(result, one[4], rtol=1e-5)
