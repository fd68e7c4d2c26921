"""Preprocessing layers that adapt to a DataFrame in Spark."""

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

import tensorflowonspark as tfos
from tensorflowonspark.ml.row_statistics import Splitter
from tests.support.preprocessing import (
    adapted_alone,
    assert_equal,
    make_layers,
    rows,
    state_of,
    states_in,
    structured,
    table,
)

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


@pytest.mark.parametrize("tokens", ["by Arrow", pytest.param("by TensorFlow", marks=pytest.mark.slow)])
def test_every_layer_gets_the_state_of_keras(spark, tokens):
    given = rows()
    frame = spark.createDataFrame(given).repartition(2).cache()
    expected = adapted_alone(given)
    for column, layers in make_layers().items():
        # Splitting into characters or n-grams, and functions of the user's, need TensorFlow in Spark's workers.
        chosen = [place for place, layer in enumerate(layers) if (tokens == "by TensorFlow") == needs_tensorflow(layer)]
        states = [state_of(tfos.adapt(layers[place], frame, column)) for place in chosen]
        whole = [expected[column][place] for place in chosen]
        assert_equal([layers[place] for place in chosen], column, states, whole, given)
    frame.unpersist()


def needs_tensorflow(layer):
    return type(layer).__name__ == "TextVectorization" and Splitter.of(layer).plain is None


@pytest.mark.slow
def test_images_fills_vectors_ragged_arrays_and_columns_of_any_name(spark):
    import keras

    vectors = spark.createDataFrame([(Vectors.dense([1, 2]),), (Vectors.sparse(2, [1], [4.0]),)], ["v"])
    assert np.asarray(tfos.adapt(keras.layers.Normalization(), vectors).mean).tolist() == [[0.5, 3.0]]
    pixels = np.random.default_rng(0).integers(0, 256, (20, 12)).astype("u1")
    given = [(bytearray(each.tobytes()), [1] * (number % 3)) for number, each in enumerate(pixels)]
    frame = spark.createDataFrame(given, "pixels binary, `a.b c` array<int>")
    layer = keras.layers.Normalization(axis=-1)
    layer.build((None, 2, 2, 3))
    whole = keras.layers.Normalization(axis=-1)
    whole.adapt(pixels.reshape(20, 2, 2, 3).astype("f4"))
    np.testing.assert_allclose(state_of(tfos.adapt(layer, frame, "pixels")), state_of(whole), rtol=1e-4)
    lookup = tfos.adapt(keras.layers.IntegerLookup(output_mode="tf_idf"), frame, "a.b c")
    assert lookup.get_vocabulary() == [-1, 1]
    assert lookup.idf_weights_const.numpy() == pytest.approx(np.log(1 + 20 / (1 + 13)))
    holes = spark.createDataFrame([(1.0,), (None,), (2.0,)], "x double")
    with pytest.raises(tfos.SpecError, match="column 'x' holds 1 null.*declared with fill"):
        tfos.adapt(keras.layers.Normalization(), holes)
    assert float(tfos.adapt(keras.layers.Normalization(), holes, fill={"x": 6}).mean[0, 0]) == 3


def test_a_model_finds_its_columns(spark):
    import keras

    frame = table(spark)
    model = tfos.adapt(structured(), frame)
    values = frame.select("b", "a").toPandas().to_numpy("f4")
    both = model.get_layer("both")
    np.testing.assert_allclose(np.asarray(both.adapt_mean), values.mean(0), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(both.adapt_variance), values.var(0), rtol=1e-5)
    assert "é" in model.get_layer("texts").get_vocabulary()
    before = states_in(model)
    tfos.adapt(model, spark.createDataFrame([("x", "x", 1.0, 1.0)], "word string, text string, a double, b double"))
    assert states_in(model) == before  # what has a state keeps it

    hidden = keras.Sequential([keras.Input((2,)), keras.layers.Rescaling(0.5), keras.layers.Normalization(name="deep")])
    with pytest.raises(tfos.SpecError, match=r"'deep' does not take an input.*columns=\{'deep': 'word'\}"):
        tfos.adapt(hidden, frame)
    tfos.adapt(hidden, frame, {"deep": ["a", "b"]})
    assert float(hidden.get_layer("deep").adapt_mean[0]) == 18
    for wrong, message in (
        (lambda: tfos.adapt(keras.layers.Dense(1), frame), "expected a Keras model, or one of Keras's layers"),
        (lambda: tfos.adapt(keras.layers.StringLookup(), frame), "name the column of the layer"),
        (lambda: tfos.adapt(keras.layers.StringLookup(), frame, "a"), "adapts to strings, and the column 'a' has type"),
        (lambda: tfos.adapt(keras.layers.IntegerLookup(), frame, "word"), "adapts to numbers"),
        (lambda: tfos.adapt(keras.layers.StringLookup(vocabulary=["a"]), frame, "word"), "made with a vocabulary"),
        (lambda: tfos.adapt(keras.layers.Normalization(mean=0, variance=1), frame, "a"), "made with mean and variance"),
        (lambda: tfos.adapt(keras.layers.Normalization(), frame, "none"), "no column 'none'"),
        (lambda: tfos.adapt(hidden, frame, {"deeper": "a"}), "names a layer 'deeper'.*'deep'"),
        (lambda: tfos.adapt(keras.layers.Normalization(), frame.where("false"), "a"), "no rows"),
        (lambda: tfos.adapt(keras.layers.Normalization(axis=0), frame, "a"), "axis 0 is that of the rows"),
    ):
        with pytest.raises(tfos.SpecError, match=message):
            wrong()
