"""Keras 3 on JAX: several workers train as one process does with the same batches."""

import contextlib
import os
import pickle
import subprocess
import sys
import textwrap
from functools import partial

import numpy as np
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.errors import NodeError
from tensorflowonspark.ml import KerasEstimator
from tests.support.programs import killer, small_frame

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(480)]

JAX = {"KERAS_BACKEND": "jax"}


def network():
    import keras

    hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((3,)), hidden, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"], weighted_metrics=["mse"])
    return model


def train(args, ctx):
    """Fit, and return all that the test compares."""
    import sys

    import keras

    model = network()
    first = model.get_weights()
    options = {"features": "features", "label": "label"}
    history = model.fit(ctx.batches(16, **options), epochs=2, verbose=0).history
    imported = "tensorflow" in sys.modules  # Keras imports it itself where it is installed, when it saves
    passes = ctx.batches(16, **options)
    steps = [[*passes], [*passes]]  # of both epochs, as above
    predicted = model.predict(np.ones((2 + ctx.index, 3), np.float32), verbose=0)
    ctx.export(model, f"{args}/model.keras")
    if ctx.is_chief:
        model.save(f"{args}/own.keras")
    return {
        "first": first,
        "history": history,
        "last": model.get_weights(),
        "predicted": predicted,
        "steps": steps,
        "distribution": type(keras.distribution.distribution()).__name__,
        "backend": keras.backend.backend(),
        "imported": imported,
    }


@pytest.mark.smoke
def test_two_workers_train_as_one_process_does(spark, tmp_path):
    import keras

    frame = small_frame(spark, [30, 11])
    results = tfos.run(spark, train, str(tmp_path), num_workers=2, data=frame, env=JAX)
    one, two = results["worker:0"], results["worker:1"]
    assert (one["backend"], one["distribution"], one["imported"]) == ("jax", "DataParallel", False)
    for name in ("first", "last"):
        np.testing.assert_equal(one[name], two[name])
    assert one["history"] == two["history"]
    model = network()
    model.set_weights(one["first"])
    for epoch in range(2):
        model.reset_metrics()
        rows, losses = [], []
        for batches in zip(one["steps"][epoch], two["steps"][epoch], strict=True):
            assert len({len(weights) for *_, weights in batches}) == 1  # all workers' batches are equally large
            x, y, weights = (np.concatenate(parts) for parts in zip(*batches, strict=True))
            real = ~np.signbit(weights)
            losses.append(model.train_on_batch(x[real], y[real], return_dict=True)["loss"])
            rows.append(real.sum())
        assert sum(rows) == 41
        np.testing.assert_allclose(one["history"]["loss"][epoch], np.average(losses, weights=rows), rtol=1e-5)
    for mine, its in zip(model.get_weights(), one["last"], strict=True):
        np.testing.assert_allclose(mine, its, atol=2e-6)
    assert [len(each["predicted"]) for each in (one, two)] == [2, 3]
    for name in ("model", "own"):
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_allclose(loaded.predict(np.ones((2, 3)), verbose=0), one["predicted"], rtol=1e-5)


def train_with_checkpoints(args, ctx):
    import keras

    if args.get("divided"):
        mesh = keras.distribution.DeviceMesh((ctx.num_workers,), ("batch",))
        layouts = keras.distribution.LayoutMap(mesh)
        layouts[".*dense/kernel"] = (None, "batch")
        keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts))
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(12, name="dense"), keras.layers.Dropout(0.1)])
    model.add(keras.layers.Dense(1, name="last"))
    model.compile("adam", "mse", metrics=["mae"])

    began = []
    callbacks = [killer(ctx, args.get("victim"), began)]
    if args.get("directory"):
        callbacks.insert(0, ctx.checkpoint(args["directory"]).callback(args.get("every")))
    dataset = ctx.dataset(16, features="features", label="label", shuffle=False)
    validation = ctx.validation_dataset(16, features="features", label="label")
    history = model.fit(dataset, epochs=args["epochs"], validation_data=validation, verbose=0, callbacks=callbacks)
    held = [each.value.addressable_shards[0].data.shape for each in model.weights]
    if args.get("export"):
        ctx.export(model, args["export"])
    return {
        "began": began,
        "loss": history.history.get("val_loss"),
        "steps": int(model.optimizer.iterations.numpy()),
        "held": held,
        "predicted": model.predict(np.eye(3, dtype=np.float32), verbose=0),
        "evaluated": model.evaluate(validation, verbose=0, return_dict=True),
    }


def run(spark, program, args, workers=2, sizes=(50, 23), env=None, **options):
    frame = small_frame(spark, list(sizes)).cache()
    validation = frame.where("id % 5 = 0")
    data = tfos.Data(frame, validation=validation)
    return tfos.run(spark, program, args, num_workers=workers, data=data, env={**JAX, **(env or {})}, **options)


@pytest.mark.slow
def test_a_run_whose_chief_was_killed_ends_as_an_unbroken_one_does(spark, tmp_path):
    unbroken = run(spark, train_with_checkpoints, {"epochs": 4})["worker:0"]
    args = {"epochs": 4, "directory": str(tmp_path / "state"), "every": 2, "victim": 0}
    restarted = run(spark, train_with_checkpoints, args, restarts=1)
    for each in restarted.values():
        assert each["began"] == [2, 3]
        np.testing.assert_allclose(each["loss"], unbroken["loss"], rtol=1e-5)
        assert each["steps"] == unbroken["steps"]
        np.testing.assert_allclose(each["predicted"], unbroken["predicted"], rtol=1e-5)
        np.testing.assert_allclose(each["evaluated"]["loss"], unbroken["evaluated"]["loss"], rtol=1e-5)
    # Three workers go on from there.
    further = run(spark, train_with_checkpoints, {**args, "epochs": 5, "victim": None}, workers=3)
    assert {tuple(each["began"]) for each in further.values()} == {(4,)}


@pytest.mark.slow
def test_a_killed_chief_is_named_and_not_the_worker_that_jax_ends_with_it(spark):
    with pytest.raises(NodeError, match="SIGKILL") as raised:
        run(spark, train_with_checkpoints, {"epochs": 500, "victim": 0})
    assert (raised.value.node, raised.value.cause) == ("worker:0", "killed")


@pytest.mark.slow
def test_variables_may_be_divided_among_the_workers(spark, tmp_path):
    args = {"epochs": 2, "directory": str(tmp_path / "state")}
    whole = run(spark, train_with_checkpoints, {"epochs": 2})["worker:1"]
    results = run(spark, train_with_checkpoints, {**args, "divided": True, "export": f"file://{tmp_path}/model.keras"})
    for each in results.values():
        assert each["held"][:2] == [(3, 6), (12,)]
        np.testing.assert_allclose(each["loss"], whole["loss"], rtol=1e-5)
        np.testing.assert_allclose(each["predicted"], whole["predicted"], rtol=1e-5)
    import keras

    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(np.eye(3), verbose=0), whole["predicted"], rtol=1e-5)
    # A training on three workers with whole variables goes on from there.
    further = run(spark, train_with_checkpoints, {**args, "epochs": 3}, workers=3)["worker:2"]
    assert (further["began"], further["held"][0]) == ([2], (3, 12))


def train_with_callbacks(directory, ctx):
    """Train with callbacks that write files, with class weights, and with several inputs, on two devices per worker."""
    import jax
    import keras

    class Breaks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise InterruptedError

    def fit(*callbacks):
        keras.utils.set_random_seed(3)
        model = network()
        dataset = ctx.dataset(16, features="features", label="label", shuffle=False)
        history = model.fit(dataset, epochs=4, verbose=0, callbacks=list(callbacks))
        return history.epoch, [*map(np.asarray, model.get_weights())]

    unbroken = fit(
        keras.callbacks.ModelCheckpoint(f"{directory}/{{epoch}}.keras"),
        keras.callbacks.ModelCheckpoint(
            f"{directory}/{{epoch}}-{{batch}}.weights.h5", save_weights_only=True, save_freq=3
        ),
        keras.callbacks.CSVLogger(f"{directory}/log.csv"),
        keras.callbacks.OrbaxCheckpoint(f"{directory}/orbax", save_freq="epoch", max_to_keep=2),
    )
    with contextlib.suppress(InterruptedError):
        fit(keras.callbacks.BackupAndRestore(f"{directory}/backup"), Breaks())
    resumed = fit(keras.callbacks.BackupAndRestore(f"{directory}/backup"))
    keras.utils.set_random_seed(3)
    one, two = keras.Input((), name="kind"), keras.Input((3,), name="features")
    joined = keras.layers.Concatenate()([keras.layers.Reshape((1,))(one), two])
    model = keras.Model({"kind": one, "features": two}, keras.layers.Dense(3, "softmax")(joined))
    model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"], steps_per_execution=2)
    batches = ctx.batches(16, features=["kind", "features"], label="kind")
    weighted = model.fit(batches, epochs=2, verbose=0, class_weight={0: 1.0, 1: 3.0}).history
    called = np.asarray(model({"kind": np.ones(2), "features": np.ones((2, 3))}))
    return jax.local_device_count(), unbroken, resumed, weighted, called


@pytest.mark.slow
def test_callbacks_write_once_and_a_backup_resumes_all_workers(spark, tmp_path):
    frame = small_frame(spark, [50, 23]).selectExpr("*", "id % 3 as kind")
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    found = tfos.run(spark, train_with_callbacks, str(tmp_path), num_workers=2, data=frame, env={**JAX, **devices})
    count, (epochs, weights), (resumed_epochs, resumed), weighted, called = found["worker:0"]
    assert (count, epochs, resumed_epochs) == (2, [0, 1, 2, 3], [2, 3])
    for mine, its in zip(weights, resumed, strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-6)
    np.testing.assert_equal(found["worker:1"], found["worker:0"])
    assert np.isfinite(weighted["loss"]).all()
    assert called.shape == (2, 3)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"1.keras", "4.keras", "1-3.weights.h5", "log.csv"} <= names
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 5  # the header, and one line for each epoch
    # Both workers write their parts of one checkpoint.
    kept = [path for path in (tmp_path / "orbax").iterdir() if (path / "_CHECKPOINT_METADATA").exists()]
    assert len(kept) == 2
    assert all((path / "pytree" / f"ocdbt.process_{worker}").is_dir() for path in kept for worker in range(2))


def refused(args, ctx):
    """Return the text of the error of each program that does not fit on several workers."""
    import keras

    def own(rows, width=3):
        return np.ones((rows, width), np.float32), np.ones(rows, np.float32)

    def different_seeds():
        keras.utils.set_random_seed(ctx.index)
        network().fit(*own(32), verbose=0)

    def different_steps():
        network().fit(*own(32 * (1 + ctx.index)), batch_size=16, verbose=0)

    different_epochs = partial(network().fit, *own(32), batch_size=8, steps_per_epoch=1 + ctx.index, verbose=0)

    def one_batch_for_all():
        mesh = keras.distribution.DeviceMesh((1, ctx.num_workers), ("batch", "model"))
        layouts = keras.distribution.LayoutMap(mesh)
        with keras.distribution.ModelParallel(layout_map=layouts).scope():
            network().fit(ctx.batches(16, features="features", label="label"), verbose=0)

    def own_exchange():
        class Averages(keras.callbacks.Callback):
            exchanges_weights = True

        network().fit(*own(32), verbose=0, callbacks=[Averages()])

    texts = []
    programs = different_seeds, different_steps, different_epochs, one_batch_for_all, own_exchange, ctx.strategy
    for program in programs:
        try:
            program()
        except tfos.ClusterError as error:
            texts.append(str(error))
        else:
            texts.append("")
        keras.utils.set_random_seed(1)
    model = network()
    losses = model.fit(*own(21), batch_size=16, verbose=0).history["loss"]  # all have the same short batch
    losses.append(model.train_on_batch(*own(4), return_dict=True)["loss"])
    if ctx.is_chief:
        model.export(args["directory"])  # alone
    return texts, losses


@pytest.mark.slow
def test_programs_that_would_differ_in_silence_are_refused_on_all_workers(spark, tmp_path):
    results = run(spark, refused, {"directory": str(tmp_path / "exported")}, sizes=(20, 20))
    assert (tmp_path / "exported" / "saved_model.pb").exists()
    for texts, losses in results.values():
        assert "differ before the first step" in texts[0]
        assert "numbers of steps (worker 0: 2, worker 1: 4)" in texts[1]
        assert "steps in an epoch (worker 0: 1, worker 1: 2)" in texts[2]
        assert "must have the same rows" in texts[3]
        assert "TFOS_JAX_ALONE" in texts[4]
        assert "leave out the strategy" in texts[5]
        assert np.isfinite(losses).all()


def batch_of(worker, number):
    rng = np.random.default_rng([worker, number])
    return rng.random((8, 3), np.float32), rng.random(8, np.float32)


def preprocess(_, ctx):
    """Return a feed's features as adapted layers map them in its dataset, and as a call of the layer gives them."""
    import keras

    def data():
        return ctx.dataset(8, features="features", label="label", shuffle=False)

    space = keras.utils.FeatureSpace
    layer = keras.layers.Normalization()
    both = space({"a": space.float_normalized(), "b": space.float_discretized(4)}, output_mode="concat")
    layer.adapt(data().map(lambda x, *_: x))
    both.adapt(data().map(lambda x, *_: {"a": x[:, 0], "b": x[:, 1]}))
    own = np.concatenate([x for x, *_ in data().as_numpy_iterator()])
    mapped = data().map(lambda x, *rest: (layer(x), *rest))
    found = np.concatenate([x for x, *_ in mapped.as_numpy_iterator()])
    spaced = data().map(lambda x, *rest: (both({"a": x[:, 0], "b": x[:, 1]}), *rest))
    widths = [x.shape[1] for x, *_ in spaced.as_numpy_iterator()]
    losses = []
    for each in (mapped, spaced):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        losses.append(model.fit(each, verbose=0).history["loss"])
    return (
        found,
        (own - np.asarray(layer.mean)) / np.sqrt(np.asarray(layer.variance)),
        np.asarray(layer(own)),
        widths,
        losses,
    )


def test_a_dataset_of_its_own_may_have_batches_of_several_lengths_on_one_worker(spark):
    def program(args, ctx):
        import keras
        import tensorflow as tf

        batches = [(np.ones((2, length, 1), np.float32), np.ones((2, 1), np.float32)) for length in (3, 5)]
        signature = tf.TensorSpec((None, None, 1)), tf.TensorSpec((None, 1))
        data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
        pooled = keras.layers.GlobalAveragePooling1D()
        model = keras.Sequential([keras.Input((None, 1)), pooled, keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile("sgd", "mse", metrics=["mae"])
        return model.fit(data, epochs=2, verbose=0).history["mae"]

    found = tfos.run(spark, program, env=JAX)["worker:0"]
    assert found == pytest.approx([0.98, 0.903168])


@pytest.mark.slow
def test_preprocessing_layers_map_a_dataset(spark):
    results = run(spark, preprocess, None, sizes=(20, 9))
    for mapped, expected, called, widths, _ in results.values():
        np.testing.assert_allclose(mapped, expected, atol=1e-5)
        np.testing.assert_allclose(called, expected, atol=1e-5)
        assert set(widths) == {5}
    assert results["worker:0"][-1] == results["worker:1"][-1]


def generate(_, ctx):
    """Train with a generator of three batches on one worker and of five on the other, in epochs of two steps."""
    model = network()
    first = model.get_weights()
    batches = (batch_of(ctx.index, number) for number in range(3 + 2 * ctx.index))
    model.fit(batches, steps_per_epoch=2, epochs=3, verbose=0)
    return first, model.get_weights()


@pytest.mark.slow
def test_a_worker_whose_generator_ends_earlier_takes_the_steps_of_the_others(spark):
    for first, last in run(spark, generate, None).values():
        model = network()
        model.set_weights(first)
        for number in range(5):
            workers = (0, 1) if number < 3 else (1,)
            x, y = map(np.concatenate, zip(*(batch_of(worker, number) for worker in workers), strict=True))
            model.train_on_batch(x, y)
        for mine, its in zip(model.get_weights(), last, strict=True):
            np.testing.assert_allclose(mine, its, atol=2e-6)


def stream(_, ctx):
    model = network()
    history = model.fit(ctx.dataset(16, features="features", label="label"), verbose=0)
    return history.history["loss"], int(model.optimizer.iterations.numpy())


@pytest.mark.slow
def test_rows_are_taken_as_they_arrive(spark):
    frame = small_frame(spark, [50, 23])
    results = tfos.run(spark, stream, num_workers=2, data=tfos.Data(frame, start="first_rows"), env=JAX)
    assert len({str(each) for each in results.values()}) == 1
    assert results["worker:0"][1] >= 5


@pytest.mark.slow
def test_an_estimator_trains_on_jax_and_its_model_works_on_any_backend(spark):
    def build():
        import keras

        return keras.Sequential([keras.Input((3,)), keras.layers.Normalization(), keras.layers.Dense(2, "softmax")])

    frame = small_frame(spark, [60, 30]).selectExpr("features", "id % 2 as label")
    est = KerasEstimator(build, loss="sparse_categorical_crossentropy", metrics=["accuracy"], numWorkers=2, epochs=2)
    model = est.setBackend("jax").setClassWeight({0: 1.0, 1: 2.0}).fit(frame)
    assert np.isfinite(model.history["loss"]).all()
    mean = model.keras().layers[0].mean
    features = np.array([row.features for row in frame.collect()])
    np.testing.assert_allclose(np.ravel(mean), features.mean(0), atol=1e-5)  # of the rows of both workers
    rows = model.transform(frame).collect()
    program = """
        import pickle, sys
        from tensorflowonspark.ml.distribution import load_call
        bundle, features = pickle.load(sys.stdin.buffer)
        call = load_call(bundle)
        sys.stdout.buffer.write(pickle.dumps(call(features)))
    """
    data = pickle.dumps((model._bundle, {"features": np.array([row.features for row in rows], np.float32)}))
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, input=data, env={**os.environ, **JAX}, capture_output=True, check=True, timeout=200)
    (found,) = pickle.loads(done.stdout).values()
    np.testing.assert_allclose(found, [row.probability.toArray() for row in rows], atol=1e-5)


def alone(args, ctx):
    import jax
    import keras

    model = network()
    model.fit(np.full((8, 3), 1.0 + ctx.index), np.ones(8), verbose=0)
    return jax.process_count(), keras.distribution.distribution(), float(model.get_weights()[0].sum())


@pytest.mark.slow
def test_workers_can_train_alone(spark):
    results = tfos.run(spark, alone, num_workers=2, env={**JAX, "TFOS_JAX_ALONE": "1"})
    assert [each[:2] for each in results.values()] == [(1, None)] * 2
    assert len({each[2] for each in results.values()}) == 2
