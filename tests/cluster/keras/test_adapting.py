"""Preprocessing layers that adapt on several workers: the state of all rows, as of ``adapt`` in one process."""

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.preprocessing import adapted_alone, assert_equal_states, make_layers, rows, state_of

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


def adapting(args, ctx):
    """Adapt every kind of layer on the fed data set, in every way in which one gets at it."""
    import keras
    import tensorflow as tf

    def column(name, batch_size=10):
        return ctx.dataset(batch_size, features=name, label="y").map(lambda x, y, w: x)

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    states = {}
    for name, layers in make_layers().items():
        data = column(name)
        for layer in layers:
            # Rows of words alone would be one document together; Keras takes lists of words as documents.
            layer.adapt(data.map(lambda x: x[:, None]) if name == "number" else data)
        states[name] = [state_of(layer) for layer in layers]
    own = keras.layers.Normalization(axis=None)
    own.adapt(tf.data.Dataset.from_tensor_slices(np.arange(4.0) + ctx.index).batch(2))  # each worker's own data
    labelled, by_name, generated, twice, wrapped = (keras.layers.Normalization(axis=-1) for _ in range(5))
    labelled.adapt(ctx.dataset(9, features="x", label="y"))
    by_name.adapt(ctx.dataset(9, features="x").unbatch().batch(5))
    generated.adapt(x for x, _, _ in ctx.batches(7, features="x", label="y")())
    twice.adapt(ctx.dataset(8, features="x", label="y").map(lambda x, y, w: x * 2 + 1))
    twice.adapt(column("x"))
    source = ctx.batches(8, features="x", label="y")
    signature = tuple(tf.TensorSpec(shape, "float64") for shape in ((None, 3),))
    wrapped.adapt(tf.data.Dataset.from_generator(lambda: ((x,) for x, _, _ in source()), output_signature=signature))
    several = [state_of(each) for each in (labelled, by_name, generated, twice, wrapped)]
    with strategy.scope():
        inside = keras.layers.Normalization()
        lookup = keras.layers.StringLookup()
        lookup.adapt(column("word"))
        inside.adapt(column("x"))
        words, values = keras.Input((), dtype="string", name="word"), keras.Input((3,), name="x")
        table = keras.layers.Embedding(lookup.vocabulary_size(), 2)(lookup(words))
        model = keras.Model([words, values], keras.layers.Dense(1)(keras.layers.Concatenate()([table, inside(values)])))
        model.compile("sgd", "mse")
    several.append(state_of(inside))
    # The epochs of training are whole: the passes of adapt took nothing of them.
    data = ctx.dataset(10, features=["word", "x"], label="y")
    history = model.fit(data, epochs=2, verbose=0).history["loss"]
    steps = [sum(int(tf.math.count_nonzero(w)) for *_, w in data) for _ in range(2)]
    return {
        "states": states,
        "several": several,
        "own": state_of(own),
        "words": state_of(lookup),
        "history": history,
        "steps": steps,
        "rows": ctx.feed().rows,
        "weights": [weight.numpy().tolist() for weight in model.trainable_weights],
    }


def test_all_workers_get_the_state_of_all_rows(spark):
    given = rows()
    # One worker has 30 rows and the other 7: their words, and the batches that fill up, differ.
    frame = spark.createDataFrame(given[:30]).coalesce(1).union(spark.createDataFrame(given[30:]).coalesce(1))
    results = tfos.run(spark, adapting, data=frame, num_workers=2)
    expected = adapted_alone(given)
    for index, result in enumerate(results.values()):
        assert_equal_states(result["states"], expected, given)
        mean, variance = expected["x"][0]
        for state in result["several"]:
            np.testing.assert_allclose(state[0], mean, rtol=1e-5)
            np.testing.assert_allclose(state[1], variance, rtol=1e-4)
        assert result["own"] == [1.5 + index, 1.25]
        assert result["words"] == expected["word"][0]
        assert result["steps"] == [result["rows"]] * 2
    one, two = results.values()
    assert one["rows"] + two["rows"] == 37
    assert one["states"] == two["states"]
    assert one["history"] == two["history"]
    assert one["weights"] == two["weights"]


def feed_after_feed(args, ctx):
    """Adapt to a stream, to fewer rows than workers, and to what can't be adapted to."""
    import keras

    states = []
    for feed in ctx.feeds():
        layer = keras.layers.Normalization()
        layer.adapt(feed.dataset(4, features="x", label="y"))
        states.append(state_of(layer))
        if feed.rows is None:
            continue
        text = keras.layers.TextVectorization(output_mode="tf_idf")
        text.adapt(feed.dataset(4, features="text", label="y").map(lambda x, y, w: x))
        bins = keras.layers.Discretization(num_bins=3)
        bins.adapt(feed.dataset(4, features="x", label="y").map(lambda x, y, w: x))
        space = keras.utils.FeatureSpace({"number": "float_normalized", "word": "string_categorical"})
        space.adapt(feed.dataset(4, features=["number", "word"]))
        data = feed.dataset(4, features="x", label="y").map(lambda x, y, w: x)
        refused = []
        for wrong in (data.cache(), feed.dataset(4, features=["x", "y"])):
            try:
                keras.layers.Normalization().adapt(wrong)
            except tfos.FeedError as error:
                refused.append(str(error))
        states.append([*map(state_of, (text, bins, *space.preprocessors.values())), *refused])
        # tf_keras comes last: it takes what is fed in the same way
        import tf_keras

        old = tf_keras.layers
        layers = [old.Normalization(), old.TextVectorization(output_mode="tf_idf"), old.Discretization(num_bins=3)]
        for layer, column in zip(layers, ("x", "text", "x"), strict=True):
            layer.adapt(feed.dataset(4, features=column, label="y").map(lambda x, y, w: x))
        weights = layers[1]._lookup_layer.idf_weights.numpy()
        states.append([layers[0].mean.numpy().ravel().tolist(), layers[1].get_vocabulary(), weights.tolist(),
                       list(layers[2].bin_boundaries), [layer.is_adapted for layer in layers]])  # fmt: skip
    return states


def test_streams_workers_without_rows_and_what_is_refused(spark):
    given = rows()
    with tfos.Cluster(spark, feed_after_feed, num_workers=2) as cluster:
        cluster.train(spark.createDataFrame(given).repartition(3), cache=None)
        cluster.train(spark.createDataFrame(given[3:4]))
        one, two = cluster.join().values()
    assert one == two
    stream, single, rest, old = one
    np.testing.assert_allclose(stream[0], adapted_alone(given)["x"][0][0], rtol=1e-5)
    assert stream[1] != single[1] == [0, 0, 0]
    np.testing.assert_allclose(single[0], given[3]["x"], rtol=1e-6)
    text, bins, number, word, cached, several = rest
    assert text[0] == ["[UNK]", "é", "ü"]
    np.testing.assert_allclose(text[1], np.log(1.5), rtol=1e-6)
    assert len(bins) == 2
    assert number[0] == [given[3]["number"]]
    assert word[0] == ["[UNK]", "blü"]
    assert ".cache()" in cached
    assert "adapt takes the values of one column, and the elements have ['x', 'y']" in several
    np.testing.assert_allclose(old[0], given[3]["x"], rtol=1e-6)
    assert old[1] == text[0]
    np.testing.assert_allclose(old[2], text[1], rtol=1e-6)
    np.testing.assert_allclose(old[3], bins, rtol=1e-5)
    assert old[4] == [True] * 3
