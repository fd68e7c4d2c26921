"""Preprocessing layers that adapt to a DataFrame: by Spark in the driver, and by the estimator."""

import pickle

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as f

import preprocessing
import tensorflowonspark as tfos
from preprocessing import adapted_alone, assert_equal, assert_quantiles, make_layers, rows, state_of
from tensorflowonspark.keras.preprocessing import Moments, TokenCounts, set_tokens
from tensorflowonspark.ml import KerasEstimator
from tensorflowonspark.ml.counting import CountTokens, FindMoments, Splitter, _split_by_keras
from tensorflowonspark.ml.layers import adaptable_layers, unadapted_layers
from tensorflowonspark.ml.predict import TakenColumns
from tensorflowonspark.ml.serialization import deserialize, serialize

for each in (cloudpickle, spark_cloudpickle):
    each.register_pickle_by_value(preprocessing)

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]
STRINGS = pa.list_(pa.string())
QUIET = {"clusterOptions": {"log_level": "WARNING"}}


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


words = st.sampled_from(["", "a", "b", "B", "é", "e\u0301", "日", "a b", "[UNK]", "\U0001f600"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.lists(words, max_size=3), max_size=4), min_size=1, max_size=3),
    st.sampled_from([None, 3, 5]),
    st.sampled_from([None, "a", ""]),
    st.sampled_from(["int", "multi_hot", "tf_idf"]),
)
def test_any_words_in_any_tasks(tasks, max_tokens, mask, mode):
    import keras
    import tensorflow as tf

    settings = {"max_tokens": max_tokens, "mask_token": mask, "output_mode": mode}
    own, whole = (keras.layers.StringLookup(**settings) for _ in range(2))
    taken = TakenColumns(("w",), {"shapes": {"w": (None,)}})
    parts = []
    for task in tasks:
        for batch in CountTokens(taken, False, mode == "tf_idf")(
            iter([pa.record_batch([pa.array(task, STRINGS)], ["w"])])
        ):
            found = batch.to_pylist()
            tokens = [row["token"] for row in found if row["token"] is not None]
            numbers = [np.array([row[name] for row in found if row["token"] is not None], int) for name in
                       ("count", "documents")]  # fmt: skip
            seen = sum(row["documents"] for row in found if row["token"] is None)
            parts.append(TokenCounts(np.array([*tokens, None], object)[:-1], *numbers, seen))
    rows = [row for task in tasks for row in task]
    assert sum(part.rows for part in parts) == len(rows)
    if not {each for row in rows for each in row} - {mask, "[UNK]"}:
        return  # Keras fails
    set_tokens(own, TokenCounts.merged(parts))
    whole.adapt(tf.data.Dataset.from_tensors(tf.ragged.constant(rows, ragged_rank=1, dtype=tf.string)))
    assert state_of(own)[0] == state_of(whole)[0]
    np.testing.assert_allclose(state_of(own)[1], state_of(whole)[1], rtol=1e-6)


CHARACTERS = "aBÉ éß日İ\t\n\x0b\x0c\r\x00\x1c\x85\u00a0\u2003!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text(st.sampled_from(CHARACTERS)), max_size=4),
    st.sampled_from([None, "lower", "strip_punctuation", "lower_and_strip_punctuation"]),
    st.sampled_from([None, "whitespace"]),
)
def test_arrow_splits_any_text_as_keras_does(texts, standardize, split):
    import keras

    splitter = Splitter.of(keras.layers.TextVectorization(standardize=standardize, split=split))
    assert splitter.plain
    for values in (np.array([*texts, "a b"], object), np.array(["a"], object)):
        tokens, lengths = splitter.split(values)
        own, whole = _split_by_keras(splitter.layer, values)
        assert [each.encode() for each in tokens.to_pylist()] == list(own)
        assert list(lengths) == list(whole)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), max_size=5), min_size=1, max_size=4),
    st.sampled_from([-1, None]),
)
def test_any_numbers_in_any_tasks(tasks, axis):
    values = np.array([row for task in tasks for row in task])
    taken = TakenColumns(("a", "b"), {})
    parts = []
    for task in tasks:
        batch = pa.record_batch({name: [row[place] for row in task] for place, name in enumerate("ab")})
        batch = batch.cast(pa.schema({"a": pa.float64(), "b": pa.float64()}))
        found = FindMoments(taken, () if axis is None else (axis,))(iter([batch]))
        parts += [pickle.loads(each["moments"][0].as_py()) for each in found]
    assert bool(parts) == bool(len(values))
    if parts:
        moments = Moments.merged(parts)
        over = None if axis is None else 0
        np.testing.assert_allclose(moments.mean, values.mean(over), atol=1e-9)
        np.testing.assert_allclose(moments.variance, values.var(over), atol=1e-6)


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


def structured():
    """Return a model of several inputs, as Keras's guide to structured data builds one."""
    import keras

    layers = keras.layers
    text = keras.Input((), name="text", dtype="string")
    word, a, b = (keras.Input((1,), name=name, dtype=dtype) for name, dtype in
                  (("word", "string"), ("a", "float32"), ("b", "float32")))  # fmt: skip
    looked = layers.StringLookup(max_tokens=8, output_mode="multi_hot", pad_to_max_tokens=True)(word)
    spoken = layers.TextVectorization(10, output_mode="tf_idf", pad_to_max_tokens=True, name="texts")(text)
    both = layers.Normalization(name="both")(layers.Concatenate()([b, a]))
    binned = layers.Discretization(num_bins=3, output_mode="one_hot")(a)
    joined = layers.Concatenate()([looked, spoken, both, binned])
    model = keras.Model([word, text, a, b], layers.Dense(1, kernel_initializer="zeros")(joined))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def table(spark):
    given = [(each["word"], each["text"], float(n), float(n % 4), each["y"]) for n, each in enumerate(rows())]
    return spark.createDataFrame(given, "word string, text string, a double, b double, y double").repartition(3)


def states_in(model):
    return {type(each).__name__: state_of(each) for each in adaptable_layers(model)}


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


def build():
    return structured()


def test_the_estimator_adapts_by_itself(spark):
    frame = table(spark).withColumn("held", f.col("a") > 30)
    params = {"featuresCols": ["word", "text", "a", "b"], "labelCol": "y", "batchSize": 8, "numWorkers": 2, **QUIET}
    train = frame.where("not held")
    # As Keras saves it: of a vocabulary that ends with an empty token the file loses this one.
    expected = states_in(deserialize(serialize(tfos.adapt(structured(), train))))
    given = structured()
    fitted = [
        KerasEstimator(model, validationIndicatorCol="held", **params).fit(frame) for model in (given, build)
    ]  # the same two ways: by Spark in the driver, and on the nodes
    assert len(unadapted_layers(structured())) == 4
    assert len(unadapted_layers(given)) == 4  # the user's own model is as it was
    for model in fitted:
        states = states_in(model.keras())
        assert_quantiles(states.pop("Discretization"), np.arange(31.0), 3, 0.01)
        for kind, state in states.items():
            for mine, theirs in zip(state, expected[kind], strict=True):
                assert mine == pytest.approx(theirs, rel=1e-4) if kind == "Normalization" else mine == theirs
        assert model.transform(frame).where("prediction is not null").count() == 37
