"""Models exported by a node's Keras, and scopes that are entered again."""

import numpy as np
import pytest
import tensorflow as tf

from tensorflowonspark.exports.writing import export
from tensorflowonspark.keras import hooks, saving


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request, monkeypatch):
    """Return Keras 3 or 2, with the export of a node."""
    keras = pytest.importorskip(request.param)
    kind = type(keras.export.ExportArchive())
    for name in ("add_endpoint", "write_out"):
        owner, _ = hooks.place_of(kind, name)
        monkeypatch.setattr(owner, name, vars(owner)[name])
    if "__new__" in vars(keras.export.ExportArchive):
        monkeypatch.setattr(keras.export.ExportArchive, "__new__", vars(keras.export.ExportArchive)["__new__"])
    saving.export_for_inference(keras)
    return keras


def augmenting(keras, kind):
    """Return a model with layers that do something else while it is trained, by default or not."""

    class Shifted(keras.layers.Layer):
        """Takes nothing for ``training`` by default."""

        def call(self, inputs, training=None):
            return inputs + 7 if training else inputs

    class Doubled(keras.layers.Layer):
        """Is in training by default."""

        def call(self, inputs, training=True):
            return 2 * inputs if training else inputs

    layers = [
        keras.layers.RandomRotation(0.4),
        keras.layers.RandomFlip(),
        keras.layers.RandomTranslation(0.3, 0.3),
        keras.layers.GaussianNoise(1.0),
        keras.layers.Dropout(0.5),
        Shifted(),
        Doubled(),
        keras.layers.BatchNormalization(),
    ]
    if kind == "subclassed":

        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.parts = layers

            def call(self, inputs, training=None):
                for layer in self.parts:
                    inputs = layer(inputs, training=training)
                return inputs

        model = Model()
    elif kind == "sequential":
        model = keras.Sequential([keras.Input((4, 4, 1)), *layers])
    else:
        inner = keras.Sequential([keras.Input((4, 4, 1)), *layers])
        inputs = {"image": keras.Input((4, 4, 1), name="image"), "bias": keras.Input((4, 4, 1), name="bias")}
        model = keras.Model(inputs, {"out": inner(inputs["image"]) + inputs["bias"]})
    return model


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["sequential", "nested", "subclassed"])
def test_what_is_exported_gives_what_predict_gives(keras, kind, tmp_path):
    model = augmenting(keras, kind)
    image = np.arange(32, dtype="f4").reshape(2, 4, 4, 1)
    inputs = {"image": image, "bias": image} if kind == "nested" else image
    expected = model.predict(inputs, verbose=0)
    export(model, str(tmp_path / "model"), is_chief=True, scratch=None)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    assert served.structured_input_signature[1].keys() >= ({"image", "bias"} if kind == "nested" else set())
    named = inputs if kind == "nested" else {next(iter(served.structured_input_signature[1])): image}
    given = served(**{name: tf.constant(each) for name, each in named.items()})
    np.testing.assert_allclose(
        next(iter(given.values())), expected["out"] if kind == "nested" else expected, rtol=1e-5, atol=1e-6
    )


def test_the_scope_is_left_and_entered_again():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        with saving.outside_scope():
            assert not tf.distribute.has_strategy()
            assert "Mirrored" not in type(tf.Variable(1.0)).__name__
            assert tf.function(lambda: tf.constant(tf.distribute.has_strategy()))().numpy() == False  # noqa: E712
        assert tf.distribute.get_strategy() is strategy
        assert "Mirrored" in type(tf.Variable(1.0)).__name__
    with saving.outside_scope():
        assert not tf.distribute.has_strategy()
