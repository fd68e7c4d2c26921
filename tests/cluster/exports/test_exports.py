"""Exports of trainings on several workers: the chief writes what the rows of its feed are applied to."""

import numpy as np
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.exports.formats import FORMATS
from tensorflowonspark.exports.parity import apply
from tests.support.programs import small_frame

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]


def small_model():
    """Return a model with all that workers must agree on, whose input has a name."""
    import keras

    stack = [keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,), name="features"), *stack])
    model.compile("adam", "mse")
    return model


def train(args, ctx):
    """Fit under a strategy or on JAX, and export in some formats."""
    import keras

    keras.utils.set_random_seed(3)
    if keras.backend.backend() == "jax":
        model, rows = small_model(), ctx.batches(16, features="features", label="label")
    else:
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = small_model()
        rows = ctx.dataset(16, features="features", label="label")
    model.fit(rows, verbose=0)
    paths = [ctx.export(model, f"{args['path']}/{name}", format=name, version="next") for name in args["formats"]]
    return paths, np.asarray(model(np.ones((1, 3), "f4")))


@pytest.mark.parametrize(
    ("formats", "env"),
    [
        (["keras"], {}),
        (["litert", "onnx", "openvino", "tf_saved_model", "weights"], {}),
        pytest.param(["onnx", "litert"], {"KERAS_BACKEND": "jax"}, marks=pytest.mark.slow),
    ],
    ids=["keras", "all", "jax"],
)
def test_the_chief_writes_what_the_workers_have_trained(spark, tmp_path, formats, env):
    arguments = {"path": str(tmp_path), "formats": formats}
    results = tfos.run(spark, train, arguments, num_workers=2, data=small_frame(spark, [20, 21]), env=env)
    assert {role: paths for role, (paths, _) in results.items()} == {
        "worker:0": [f"{tmp_path}/{name}/1" for name in formats],
        "worker:1": [f"{tmp_path}/{name}" for name in formats],
    }
    for name in {*formats} - {"keras", "weights"}:
        to = FORMATS[name]
        path = f"{tmp_path}/{name}/1{'/model' + to.ending if to.ending else ''}"
        found = apply(path, to, {"features": np.ones((1, 3), "f4")})
        assert (tmp_path / name / "1/assets.extra/manifest.json").exists()
        for _, expected in results.values():
            np.testing.assert_allclose(found["output_0"], expected, rtol=1e-4, atol=1e-5)


def test_an_export_that_computes_something_else_is_refused(spark, tmp_path):
    def program(args, ctx):
        import keras

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
        for features, *_ in ctx.dataset(16, features="features", label="label").take(1):
            model(features)
        model.quantize("int8")  # which OpenVINO's converter turns into something else
        ctx.export(model, args, format="openvino")

    with pytest.raises(tfos.NodeError, match="the export differs from the model: row .* It was not written"):
        tfos.run(spark, program, str(tmp_path / "model"), num_workers=1, data=small_frame(spark, [20]))
    assert not list(tmp_path.iterdir())
