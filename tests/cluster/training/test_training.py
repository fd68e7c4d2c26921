"""Training from DataFrames on two workers: each row once per epoch, the same model everywhere."""

import time
from contextlib import nullcontext
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.processes import node_of
from tests.support.programs import fit, small_frame, small_model


def assert_same_model(results):
    first, *others = results.values()
    assert np.isfinite(first["loss"]).all()
    for other in others:
        assert other["loss"] == pytest.approx(first["loss"])
        for one, two in zip(first["weights"], other["weights"], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-6)
            assert np.isfinite(one).all()


def train_on_partitions(spark, sizes, rebalance):
    """Train two workers on partitions of these sizes: it ends, each row is seen once, the weights are equal."""
    with tfos.Cluster(spark, fit, {"batch_size": 16}, num_workers=2) as cluster:
        cluster.train(small_frame(spark, sizes), rebalance=rebalance)
        results = cluster.join()
    if rebalance:
        sizes = [sum(sizes) // 2, sum(sizes) - sum(sizes) // 2]
    assert sorted(result["rows"] for result in results.values()) == sorted(sizes)
    assert sorted(sum((result["seen"] for result in results.values()), [])) == list(range(sum(sizes)))
    assert_same_model(results)
    assert {result["steps"] for result in results.values()} == {2 * -(-max(sizes) // 8)}


@pytest.mark.masters("local-cluster", "standalone")
@pytest.mark.parametrize("rebalance", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_worker_with_ten_times_the_rows_of_the_other(spark, rebalance):
    train_on_partitions(spark, [100, 11], rebalance)


@pytest.mark.masters("local")
@pytest.mark.parametrize("rebalance", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_worker_whose_partition_is_empty(spark, rebalance):
    train_on_partitions(spark, [40, 0], rebalance)


@pytest.mark.slow
@pytest.mark.masters("local", "standalone")
def test_fit_on_a_stream_with_rows_to_validate_on(spark):
    def program(args, ctx):
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(3)
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = small_model()
        columns = {"features": "features", "label": "label"}
        history = model.fit(
            ctx.dataset(16, **columns), validation_data=ctx.validation_dataset(32, **columns), epochs=1, verbose=0
        )
        weights = [weight.numpy() for weight in model.weights]
        assert int(model.optimizer.iterations.numpy()) == 13  # the larger share has 100 rows, 8 in a step
        return {"loss": history.history["loss"] + history.history["val_loss"], "weights": weights}

    frame = small_frame(spark, [100, 30, 0, 7])
    with tfos.Cluster(spark, program, num_workers=2) as cluster:
        cluster.train(frame, validation=small_frame(spark, [40, 3]), cache=None)
        assert_same_model(cluster.join())


@pytest.mark.masters("local")
def test_a_held_stage_feeds_its_own_nodes(spark):
    results = tfos.run(spark, fit, {"batch_size": 16}, num_workers=2, data=small_frame(spark, [30, 3, 4]))
    assert sorted(sum((result["seen"] for result in results.values()), [])) == list(range(37))
    assert_same_model(results)


@pytest.mark.masters("local")
def test_only_workers_can_be_fed_by_a_held_stage(spark):
    with pytest.raises(tfos.SpecError, match="feeds every node"):
        tfos.run(spark, fit, num_workers=1, num_ps=1, chief=True, data=small_frame(spark, [3]))


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_one_worker_gives_what_plain_keras_gives(spark):
    import keras

    result = tfos.run(spark, fit, {"batch_size": 16, "epochs": 1}, data=small_frame(spark, [50]))["worker:0"]
    frame = small_frame(spark, [50]).orderBy("id").collect()
    order = np.random.default_rng([0, 0]).permutation(50)
    x, y = np.array([row.features for row in frame], "f4")[order], np.array([row.label for row in frame], "f4")[order]
    keras.utils.set_random_seed(3)
    model = small_model()
    history = model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
    assert result["loss"] == pytest.approx(history.history["loss"], rel=1e-4)
    for mine, plain in zip(result["weights"], model.weights, strict=True):
        np.testing.assert_allclose(mine, plain.numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.masters("local")
@pytest.mark.parametrize("strategy", ["MultiWorkerMirroredStrategy", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_weight_for_each_time_step_trains_as_in_one_process(spark, strategy):
    if strategy == "jax":
        pytest.importorskip("jax")  # the oldest environment has none

    def trained(data, **fit):
        import keras

        layers = [keras.Input((3, 1)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
        history = model.fit(*data, epochs=2, shuffle=False, verbose=0, **fit).history
        return [*history["loss"], *history["mae"], *model.get_weights()[0].ravel().tolist()]

    def program(args, ctx):
        import tensorflow as tf

        with nullcontext() if args == "jax" else tf.distribute.MultiWorkerMirroredStrategy().scope():
            data = ctx.dataset(16, features="x", label="y", sample_weight="w", shapes={"x": (3, 1), "y": (3, 1)})
            return trained([data])

    x = np.arange(48, dtype="float32").reshape(16, 3) / 48
    y, w = x * 2 + 1, np.arange(48, dtype="float32").reshape(16, 3) % 5
    rows = list(zip(x.tolist(), y.tolist(), w.tolist(), strict=True))
    frame = spark.createDataFrame(rows, "x array<float>, y array<float>, w array<float>").repartition(2)
    env = {"KERAS_BACKEND": "jax"} if strategy == "jax" else {}
    found = tfos.run(spark, program, strategy, num_workers=2, data=frame, env=env)
    alone = trained([x[..., None], y[..., None]], sample_weight=w, batch_size=16)
    for worker in found.values():
        assert worker == pytest.approx(alone, rel=1e-4)


@pytest.mark.masters("local")
def test_elements_of_a_dataset(spark):
    def program(args, ctx):
        feed = ctx.feed()
        pair = feed.dataset(4, features="features", label="label")
        many = feed.dataset(4, features=["features", "id"], label="label", sample_weight="label")
        rows = feed.dataset(4)  # the columns features and label have the names that are taken by themselves
        plain = feed.dataset(4, features=["id", "features"], shuffle=False).element_spec
        x, y, weight = next(iter(many))
        assert np.allclose(weight, y)
        return [
            [str(spec.shape) + spec.dtype.name for spec in pair.element_spec],
            sorted(x),
            [spec.shape.as_list() for spec in rows.element_spec],
            int(pair.cardinality()),
            sorted(plain),
        ]

    result = tfos.run(spark, program, data=small_frame(spark, [10]))["worker:0"]
    assert result[0] == ["(None, 3)float32", "(None,)float32", "(None,)float32"]
    assert result[1] == ["features", "id"]
    assert result[2] == [[None, 3], [None], [None]]
    assert result[3:] == [3, ["features", "id", "sample_weight"]]


@pytest.mark.masters("local")
def test_an_empty_dataframe_is_reported(spark):
    """Once with partitions that turn out to be empty, once with none at all, for which Spark runs no task."""
    for frame in (spark.range(100).where("id < 0"), spark.sql("select 1 x where false")):
        with pytest.raises(tfos.ClusterError, match="has no rows"):
            tfos.run(spark, lambda args, ctx: ctx.dataset(4), data=frame)
        with (
            pytest.raises(tfos.ClusterError, match="has no rows"),
            tfos.Cluster(spark, lambda args, ctx: ctx.dataset(4)) as cluster,
        ):
            cluster.train(frame)


@pytest.mark.masters("local")
def test_a_column_that_no_tensor_holds_is_refused_before_anything_starts(spark):
    started = time.monotonic()
    with pytest.raises(tfos.FeedError, match="column 'tags' has type map"):
        tfos.run(spark, fit, data=spark.sql("select map('a', 1) as tags, 1 as x"))
    assert time.monotonic() - started < 2


@pytest.mark.masters("local")
def test_a_program_that_waits_for_rows_that_never_come(spark):
    with pytest.raises(tfos.NodeError, match=r"shut down without cluster.train\(df\)"):
        with tfos.Cluster(spark, lambda args, ctx: ctx.dataset(4)):
            pass
    with pytest.raises(tfos.NodeError, match=r"waits for rows, but there are none: tfos.run\(\.\.\., data=df\)"):
        tfos.run(spark, lambda args, ctx: ctx.dataset(4))


def test_a_node_that_is_killed_in_training(spark):
    """The promise: the driver's error names the node within five seconds, and nothing is left."""

    def endless(args, ctx):
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = small_model()
        model.fit(ctx.dataset(16, features="features", label="label"), epochs=100_000, verbose=0)

    killed = []

    def kill_in_the_third_epoch(cluster):
        node = cluster._monitor.roster.nodes[1]
        while node.program.progress is None or node.program.progress.epoch < 2:
            time.sleep(0.05)
        killed.append(time.monotonic())
        node_of(cluster, 1).kill()

    with pytest.raises(tfos.NodeError) as caught, tfos.Cluster(spark, endless, num_workers=2) as cluster:
        Thread(target=kill_in_the_third_epoch, args=(cluster,), daemon=True).start()
        cluster.train(small_frame(spark, [40, 40]))
    assert time.monotonic() - killed[0] < 5
    assert (caught.value.node, caught.value.reason) == ("worker:1", "its process was ended by SIGKILL")


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_export_is_whole_and_runs_without_us(spark, tmp_path):
    import keras
    import tensorflow as tf

    def program(args, ctx):
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(3)
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = small_model()
        model.fit(ctx.dataset(16, features="features", label="label"), verbose=0)
        ctx.export(model, f"{args}/saved")
        ctx.export(model, f"file://{args}/model.keras")
        return np.asarray(model(np.ones((1, 3), "f4")))

    results = tfos.run(spark, program, str(tmp_path), num_workers=2, data=small_frame(spark, [20, 20]))
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == [
        "model.keras",
        "model.keras.manifest.json",
        "saved",
    ]
    ones = np.ones((1, 3), "f4")
    saved = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"](tf.constant(ones))
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for result in results.values():
        np.testing.assert_allclose(next(iter(saved.values())), result, rtol=1e-5)
        np.testing.assert_allclose(loaded(ones), result, rtol=1e-5)


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_asynchronous_training_with_a_parameter_server(spark):
    def program(args, ctx):
        import tensorflow as tf

        if ctx.job in ("ps", "worker"):
            ctx.join_server()
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            variable = tf.Variable(0.0)

        @tf.function
        def step():
            variable.assign_add(1.0)

        for _ in range(20):
            coordinator.schedule(step)
        coordinator.join()
        return float(variable.numpy())

    result = tfos.run(spark, program, num_workers=1, num_ps=1, chief=True)
    assert result["chief:0"] == 20.0
