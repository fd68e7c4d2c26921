"""``ctx.layout``: variables and batches divided among the devices of all workers, with the results of one process."""

import cloudpickle
import numpy as np
import pytest

import tensorflowonspark as tfos
from benchmarks.parallel import layout_contender
from tensorflowonspark.errors import NodeError
from tests.support.programs import killer, small_frame

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(480)]

JAX = {"KERAS_BACKEND": "jax"}


def devices(count):
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}


def network():
    """Return a model with a table, attention and dense layers; some of its shapes can't be divided."""
    import keras

    inputs = keras.Input((3,))
    table = keras.layers.Embedding(30, 8)(keras.ops.cast(keras.ops.abs(inputs) * 29, "int32"))
    attended = keras.layers.MultiHeadAttention(2, 4)(table, table)
    hidden = keras.layers.Dense(12, "tanh")(keras.layers.Flatten()(attended))
    outputs = keras.layers.Dense(1)(keras.layers.BatchNormalization()(keras.layers.Dense(7, "tanh")(hidden)))
    model = keras.Model(inputs, outputs)
    # A small epsilon would make steps of rounding errors, where a gradient is 0.
    model.compile(keras.optimizers.Adam(0.02, epsilon=0.1), "mse", weighted_metrics=["mae"])
    return model


def train(args, ctx):
    import keras

    if args.get("kind"):
        found = ctx.layout(args["kind"], min_size=0)
        assert keras.distribution.distribution() is ctx.layout(args["kind"], min_size=0) is found
    keras.utils.set_random_seed(3)
    model = network()

    began = []
    callbacks = [killer(ctx, args.get("victim"), began)]
    if args.get("directory"):
        callbacks.insert(0, ctx.checkpoint(args["directory"]).callback(args.get("every")))
    options = {"features": "features", "label": "label", "shuffle": False}
    validation = ctx.validation_dataset(16, features="features", label="label")
    history = model.fit(
        ctx.dataset(16, **options), epochs=args["epochs"], validation_data=validation, verbose=0, callbacks=callbacks
    ).history
    if args.get("export"):
        ctx.export(model, args["export"])

    def parts(variables):
        return {each.path: (tuple(each.shape), each.value.addressable_shards[0].data.shape) for each in variables}

    return {
        "began": began,
        "history": history,
        "parts": parts(model.variables),
        "slots": parts(model.optimizer.variables),
        "predicted": model.predict(np.eye(3, dtype=np.float32), verbose=0),
        "batches": [tuple(map(np.asarray, each)) for each in ctx.dataset(16, **options)],
    }


def run(spark, args, workers=2, sizes=(50, 23), env=None, **options):
    frame = small_frame(spark, list(sizes)).cache()
    data = tfos.Data(frame, validation=frame.where("id % 5 = 0"))
    return tfos.run(spark, train, args, num_workers=workers, data=data, env={**JAX, **(env or {})}, **options)


def train_plain(args, ctx):
    """Return losses and predictions of plain Keras with the batches of all workers, given their results."""
    import keras

    assert keras.distribution.distribution() is None
    keras.utils.set_random_seed(3)
    model = network()
    losses = []
    for _ in range(args["epochs"]):
        found = []
        for batches in zip(*(each["batches"] for each in args["results"].values()), strict=True):
            x, y, weights = (np.concatenate(each) for each in zip(*batches, strict=True))
            real = ~np.signbit(weights)
            found.append((model.train_on_batch(x[real], y[real], return_dict=True)["loss"], real.sum()))
            model.reset_metrics()
        losses.append(np.average([loss for loss, _ in found], weights=[rows for _, rows in found]))
    return losses, model.predict(np.eye(3), verbose=0)


def of_one_process(spark, results, epochs):
    return tfos.run(spark, train_plain, {"results": results, "epochs": epochs}, num_workers=1, env=JAX).chief


def check_equal(results, losses, predicted):
    for each in results.values():
        np.testing.assert_allclose(each["history"]["loss"], losses, rtol=2e-5)
        np.testing.assert_allclose(each["predicted"], predicted, rtol=1e-4, atol=1e-5)


def test_variables_and_slots_are_divided_and_the_results_are_those_of_one_process(spark, tmp_path):
    results = run(spark, {"epochs": 2, "kind": "fsdp", "export": f"file://{tmp_path}/model.keras"})
    check_equal(results, *of_one_process(spark, dict(results), 2))
    found = results["worker:1"]
    for path, (shape, part) in {**found["parts"], **found["slots"]}.items():
        divides = any(size % 2 == 0 for size in shape)
        assert (np.prod(part) * 2 == np.prod(shape)) == divides, path
    assert found["slots"]["adam/embedding_embeddings_velocity"] == ((30, 8), (15, 8))
    import keras

    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(np.eye(3), verbose=0), found["predicted"], rtol=1e-4, atol=1e-5)
    assert int(loaded.optimizer.iterations) == 2 * len(found["batches"])


@pytest.mark.slow
def test_a_checkpoint_of_two_workers_goes_on_with_three_and_one_after_a_restart(spark, tmp_path):
    unbroken = run(spark, {"epochs": 4, "kind": "data"})["worker:0"]
    args = {"epochs": 4, "kind": "fsdp", "directory": str(tmp_path / "state"), "every": 2}
    restarted = run(spark, {**args, "victim": 0}, restarts=1)
    for each in restarted.values():
        assert each["began"] == [2, 3]
        np.testing.assert_allclose(each["history"]["val_loss"], unbroken["history"]["val_loss"], rtol=1e-4)
    for epochs, workers in ((5, 3), (6, 1)):
        further = run(spark, {**args, "epochs": epochs}, workers=workers)
        shape, part = further["worker:0"]["slots"]["adam/dense_kernel_momentum"]
        assert (shape, part) == ((24, 12), (24 // workers, 12))
        assert {tuple(each["began"]) for each in further.values()} == {(epochs - 1,)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers", "count", "part"),
    [
        pytest.param("fsdp", 3, 1, (10, 8), id="uneven shapes"),
        pytest.param("fsdp", 2, 3, (5, 8), id="several devices"),
        pytest.param("fsdp", 1, 2, (15, 8), id="one worker"),
        pytest.param("model", 2, 3, (10, 8), id="devices of a worker"),
        pytest.param("data", 2, 2, (30, 8), id="whole"),
    ],
)
def test_other_numbers_of_workers_and_devices_give_the_same(spark, kind, workers, count, part):
    results = run(spark, {"epochs": 2, "kind": kind}, workers=workers, env=devices(count))
    check_equal(results, *of_one_process(spark, dict(results), 2))
    assert {each["slots"]["adam/embedding_embeddings_momentum"][1] for each in results.values()} == {part}


def refused(args, ctx):
    """Return the texts of the errors of calls that can't be right."""
    import keras

    def text(call):
        try:
            call()
        except tfos.ClusterError as error:
            return str(error)
        return ""

    texts = [text(lambda: ctx.layout("tensor")), text(lambda: ctx.layout("fsdp", min_size=-1))]
    texts += [text(lambda: ctx.layout("model")), text(lambda: ctx.layout("fsdp", min_size=ctx.index))]
    kept = ctx.layout("fsdp", min_size=0)
    keras.utils.clear_session()
    kernel = keras.layers.Dense(4)
    kernel.build((1, 4))
    texts += [text(lambda: ctx.layout("data"))]
    same = keras.distribution.distribution() is kept
    keras.distribution.set_distribution(None)
    return [*texts, text(lambda: ctx.layout("fsdp"))], same


def test_what_can_not_be_right_is_refused(spark):
    for texts, same in tfos.run(spark, refused, None, num_workers=2, env=JAX).values():
        assert same
        for text, expected in zip(
            texts,
            [
                "expected one of 'data', 'fsdp', 'model'",
                "min_size=-1: expected a number of elements",
                "and each has one: use ctx.layout('fsdp')",
                "worker 0 has asked for ('fsdp', 0), and worker 1 for ('fsdp', 1)",
                "has made a variable of Keras before",
                "has set a distribution before",
            ],
            strict=True,
        ):
            assert expected in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, r"this program's backend is 'tensorflow': set .* or use tfos.keras.ShardedEmbedding"),
        ({**JAX, "TFOS_JAX_ALONE": "1"}, "TFOS_JAX_ALONE is set, by which each worker trains a model of its own"),
    ],
)
def test_programs_of_other_kinds_are_refused(spark, env, expected):
    with pytest.raises(NodeError, match=expected):
        tfos.run(spark, lambda args, ctx: ctx.layout("fsdp"), num_workers=2, env=env)


@pytest.mark.slow
def test_a_model_that_no_worker_could_hold_trains_on_two(spark):
    """The limit of a process is below the bytes of weights and slots alone."""
    cloudpickle.register_pickle_by_value(layout_contender)  # the nodes can't import it
    limit = 700
    assert limit * 2**20 < 4 * layout_contender.ELEMENTS
    settings = {"data": layout_contender.frame(spark), "env": JAX, "nodes": tfos.Nodes(warm_nodes=False)}

    def trained(kind, workers, limit):
        args = {"kind": kind, "limit_mb": limit}
        return tfos.run(spark, layout_contender.train, args, num_workers=workers, **settings).chief[0]

    with pytest.raises(NodeError, match="Out of memory"):
        trained("", 1, limit)
    np.testing.assert_allclose(trained("fsdp", 2, limit), trained("", 1, 0), rtol=1e-4)
