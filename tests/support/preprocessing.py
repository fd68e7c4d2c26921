"""Rows, preprocessing layers of every kind, and what Keras's own ``adapt`` makes of them in one process."""

import numpy as np

from tensorflowonspark.ml.preprocessing_layers import adaptable_layers

# Ties, an empty string, unicode, and words that only one of the workers has; more rows on one worker than on the other.
TEXTS = ["a b b", "B a, é", "", "ü é é é", "c c d", "zz a", "日本 a", "b! b?", "x y z", "c d e", "only here"]


def rows():
    random = np.random.default_rng(0)
    return [
        {
            "x": (random.normal(size=3) * (1 + number) + number).tolist(),
            "number": float(np.float32(random.gamma(2.0))),
            "word": ["red", "green", "", "blü", "a", "b"][number % 6 if number < 30 else number % 3],
            "ids": [int(each) for each in random.integers(0, 9 if number < 30 else 90, 4)],
            "text": TEXTS[number % len(TEXTS) if number < 30 else number % 4],
            "y": float(number),
        }
        for number in range(37)
    ]


def make_layers():
    import keras

    layers = keras.layers

    @keras.saving.register_keras_serializable("tests")
    def shout(text):
        import tensorflow as tf

        return tf.strings.upper(text)

    text = layers.TextVectorization
    return {
        "x": [
            layers.Normalization(),
            layers.Normalization(axis=None),
            layers.Normalization(axis=-1, invert=True, name="own"),
            layers.Discretization(num_bins=4),
        ],
        "number": [layers.Discretization(num_bins=5, epsilon=0.001), layers.Normalization(axis=None)],
        "word": [
            layers.StringLookup(),
            layers.StringLookup(num_oov_indices=0, mask_token=""),
            layers.StringLookup(max_tokens=3, output_mode="multi_hot"),
        ],
        "ids": [
            layers.IntegerLookup(max_tokens=12, output_mode="count"),
            layers.IntegerLookup(output_mode="tf_idf", num_oov_indices=2),
            layers.IntegerLookup(mask_token=0, oov_token=-5),
        ],
        "text": [
            text(),
            text(max_tokens=6, output_mode="tf_idf", pad_to_max_tokens=True),
            text(output_mode="tf_idf", ngrams=2),
            text(output_mode="multi_hot", standardize="lower", split="character"),
            text(output_mode="count", standardize=shout, split=None),
        ],
    }


def state_of(layer):
    """Return what adapt has given to a layer."""
    kind = type(layer).__name__
    if kind == "Normalization":
        return [np.asarray(layer.adapt_mean).tolist(), np.asarray(layer.adapt_variance).tolist()]
    if kind == "Discretization":
        return list(map(float, layer.bin_boundaries))
    lookup = getattr(layer, "_lookup_layer", layer)
    weights = lookup.idf_weights_const.numpy().tolist() if lookup.output_mode == "tf_idf" else []
    return [[each if isinstance(each, str) else int(each) for each in layer.get_vocabulary()], weights]


def adapted_alone(rows):
    """Return the states of all layers after Keras's own adapt over all rows."""
    import tensorflow as tf

    states = {}
    for column, layers in make_layers().items():
        values = [row[column] for row in rows]
        data = tf.data.Dataset.from_tensor_slices(np.array(values) if column != "number" else np.array(values)[:, None])
        for layer in layers:
            layer.adapt(data.batch(8))
        states[column] = [state_of(layer) for layer in layers]
    return states


def assert_equal_states(states, expected, rows):
    for column, layers in make_layers().items():
        assert_equal(layers, column, states[column], expected[column], rows)


def assert_equal(layers, column, states, expected, rows):
    for layer, own, whole in zip(layers, states, expected, strict=True):
        kind = type(layer).__name__
        if kind == "Normalization":
            np.testing.assert_allclose(own[0], whole[0], rtol=1e-5)
            np.testing.assert_allclose(own[1], whole[1], rtol=1e-4)
        elif kind == "Discretization":
            assert_quantiles(own, np.array([row[column] for row in rows]).ravel(), layer.num_bins, layer.epsilon)
        else:
            assert own[0] == whole[0], (kind, column)
            np.testing.assert_allclose(own[1], whole[1], rtol=1e-6)


def assert_quantiles(boundaries, values, bins, error):
    """Check the rank of each boundary, within an error and the neighbours that interpolation may choose."""
    values = np.sort(values.astype("f4"))
    assert len(boundaries) == bins - 1
    for place, boundary in enumerate(boundaries, 1):
        low, high = np.searchsorted(values, np.float32(boundary), "left"), np.searchsorted(values, boundary, "right")
        wanted, slack = place / bins * len(values), 2 * error * len(values) + 1.5
        assert low - slack <= wanted <= high + slack, (place, boundary)


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
