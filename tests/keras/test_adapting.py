"""Preprocessing layers that adapt on several workers: the state of all rows, as of ``adapt`` in one process."""

import cloudpickle
import numpy as np
import pytest

import preprocessing
import tensorflowonspark as tfos
from preprocessing import adapted_alone, assert_equal_states, make_layers, rows, state_of

cloudpickle.register_pickle_by_value(preprocessing)

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
    results = tfos.run(spark, adapting, data=frame, workers=2)
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
