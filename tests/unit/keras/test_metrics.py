"""Padding is in no value that Keras shows: loss and metrics are those of the real rows, each counted once."""

import numpy as np
import pytest
import tensorflow as tf

from tensorflowonspark.keras import hooks, metric_sums, metrics, row_weights, steps, tf_keras, trackers, worker_step
from tests.support.padded_batches import (
    BATCH,
    ROWS,
    assert_same,
    labelled,
    model_of,
    padded,
    plain,
    shown,
)


@pytest.fixture(params=["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
def keras(request):
    """Return Keras 3 or 2, as it comes."""
    return pytest.importorskip(request.param)


@pytest.fixture
def install(keras, monkeypatch):
    """Return what makes it Keras as it is in a node, until the test ends."""

    def until_the_end(module, *names):
        for name in names:
            owner, attribute = hooks.place_of(module, name)
            monkeypatch.setattr(owner, attribute, vars(owner)[attribute])

    def install():
        if keras.__name__ == "keras":
            from keras.src.trainers import compile_utils

            until_the_end(keras, "Model.train_step", "Model.test_step", "Model.compute_loss")
            until_the_end(keras, "metrics.Mean.update_state", "metrics.Sum.update_state")
            until_the_end(compile_utils, "CompileMetrics.update_state")
            metric_sums.skip_padding(compile_utils)
            trackers.track_losses(keras)
            steps.take_steps(keras)
        else:
            from tf_keras.src.engine import compile_utils

            until_the_end(compile_utils, "MetricsContainer.update_state", "LossesContainer.__call__")
            tf_keras.skip_padding(compile_utils)
            tf_keras.divide_by_all(compile_utils)

    return install


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_sign_of_a_zero_distinguishes_padding_from_a_row_without_weight(dtype):
    weights = tf.constant([1.0, 0.0, -0.0, 2.5, -1.0], dtype)
    for each in (weights, {"a": weights, "b": 3 * weights}, [None, weights], weights.numpy(), weights[:, None]):
        assert metrics.real_rows(each).numpy().tolist() == [True, True, False, True, True]


def test_a_row_in_place_of_none_is_padding_whatever_constants_the_program_has():
    tf.constant(0.0, tf.float32)
    assert not metrics.real_rows(worker_step._a_row(tf.zeros([0]), is_weight=True)).numpy().any()
    assert np.signbit(tf.constant(0.0, tf.float32).numpy()) == np.signbit(0.0)


def test_a_row_with_several_weights_is_padding_if_all_of_them_say_so():
    weights = np.array([[1, -0.0], [-0.0, -0.0], [0.0, -0.0]], np.float32)
    assert metrics.real_rows(weights).numpy().tolist() == [True, False, True]


@pytest.mark.parametrize("weights", [None, [None], np.ones(3, "i4"), np.array(-0.0), object()])
def test_what_holds_no_weights_of_rows_says_nothing(weights):
    assert metrics.real_rows(weights) is None


def test_neither_does_a_tensor_without_rows():
    rank_unknown = tf.function(lambda weights: tf.constant(metrics.real_rows(weights) is None))
    assert metrics.real_rows(tf.constant(-0.0)) is None
    assert rank_unknown.get_concrete_function(tf.TensorSpec(None))(tf.constant([-0.0]))


def test_real_rows_are_taken_from_labels_of_all_kinds():
    """Also from ragged ones, and with the mask of time steps that Keras has on a tensor; or there are none."""
    sequences = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    sequences._keras_mask = tf.constant([[True, False], [False, True]])
    taken = []
    labels = {"one": None, "two": tf.ragged.constant([[1], [2, 3]]), "three": np.array(["a", "b"])}
    real = tf.constant([False, True])
    metrics.update_on(real, lambda *both: taken.append(both), labels, sequences, at_once=False)
    metrics.update_on(tf.zeros(2, tf.bool), lambda *both: taken.append(both), labels, sequences, at_once=False)
    ((truth, prediction),) = taken
    assert truth["one"] is None
    assert (truth["two"].to_list(), truth["three"].numpy().tolist()) == ([[2, 3]], [b"b"])
    assert prediction.numpy().tolist() == [[3, 4]]
    assert prediction._keras_mask.numpy().tolist() == [[False, True]]


@pytest.mark.parametrize("keras", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize(
    "outputs", ["one", pytest.param("dict", marks=pytest.mark.slow), pytest.param("list", marks=pytest.mark.slow)]
)
def test_padding_is_in_no_value(keras, install, outputs):
    """Six steps for ten rows: one batch is full, one has half of its rows, and three have none."""
    expected = plain(keras, outputs)
    dataset = labelled(padded(6), outputs)
    unaware = shown(model_of(keras, outputs), dataset)
    assert unaware[0]["loss"] < 0.9 * expected[0]["loss"]  # what this is all about
    install()
    assert_same(shown(model_of(keras, outputs), dataset), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 3}], ids=str
)
def test_however_keras_runs_a_step(keras, install, settings):
    expected = plain(keras)
    install()
    assert_same(shown(model_of(keras, **settings), labelled(padded(6), "one")), expected)


@pytest.mark.slow
def test_rows_in_any_order_and_weights_of_other_kinds(keras, install):
    expected = plain(keras)
    install()
    dataset = labelled(padded(6).unbatch().shuffle(64, seed=1).batch(7), "one")
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(4))
    kinds = [
        dataset.map(lambda x, y, weight: (x, y, tf.cast(weight, tf.float64))),
        dataset.map(lambda x, y, weight: (x, y, tf.cast(weight, tf.float16))),
        dataset.map(lambda x, y, weight: (x, y, weight[:, None])),
    ]
    for each in kinds:
        assert_same(shown(model_of(keras), each), expected)


@pytest.mark.deep
def test_single_batches_of_arrays(keras, install):
    (expected, _, _) = plain(keras)
    install()
    ((x, y, weight),) = labelled(padded(3).unbatch().batch(3 * BATCH), "one").as_numpy_iterator()
    model = model_of(keras)
    assert_same([model.train_on_batch(x, y, weight, return_dict=True)], [expected])
    model.reset_metrics()  # Keras does, from 3.13 on
    assert_same([model.test_on_batch(x, y, weight, return_dict=True)], [expected])


def test_what_keras_takes_by_batches_is_that_of_the_batches_without_padding(keras, install):
    """A loss that is a sum; a metric that is one number for each batch, and would be NaN for one without rows."""

    def average(truth, prediction):
        return tf.reduce_mean(prediction)

    def by_batches(dataset):
        model = model_of(keras)
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"), metrics=[average])
        return model.evaluate(dataset, return_dict=True, verbose=0)

    dataset = labelled(padded(6), "one")
    real = dataset.unbatch().take(ROWS).batch(BATCH)
    # With an end that comes as a surprise, Keras counts one batch more.
    expected = by_batches(real.apply(tf.data.experimental.assert_cardinality(3)))
    install()
    assert_same([by_batches(dataset)], [expected])


@pytest.mark.slow
def test_data_without_weights_is_keras_s_own_matter(keras, install):
    dataset = labelled(padded(6), "one").map(lambda x, y, w: (x, y))
    expected = shown(model_of(keras), dataset)
    install()
    assert shown(model_of(keras), dataset) == expected


@pytest.mark.slow
def test_what_is_learned_stays_as_it_was(keras, install):
    def learned():
        model = model_of(keras, "list", rate=0.1)
        model.fit(labelled(padded(6), "list"), epochs=2, verbose=0)
        return model.get_weights()

    expected = learned()
    install()
    for one, other in zip(learned(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(BATCH,), (5, 7)])
def test_all_losses_of_a_row_have_its_weight(shape, masked, monkeypatch):
    """One loss for each time step or pixel; the first shape has as many steps as a batch has rows."""
    keras = pytest.importorskip("keras")
    from keras.src.losses import loss

    monkeypatch.setattr(loss, "reduce_weighted_values", loss.reduce_weighted_values)
    row_weights.spread_weights(loss)
    rng = np.random.default_rng(0)
    truth, found = rng.random((2, BATCH, *shape, 1), "f4")
    weights = np.array([1, 2, 0, -0.0], "f4")
    mask = rng.random((BATCH, *shape)) < (0.7 if masked else 1)
    prediction = tf.constant(found)
    if masked:
        prediction._keras_mask = tf.constant(mask)
    value = keras.losses.MeanAbsoluteError(reduction="sum")(truth, prediction, sample_weight=weights)
    expected = np.abs(truth - found)[..., 0] * mask * weights.reshape(-1, *[1] * len(shape))
    assert float(value) == pytest.approx(expected.sum(), rel=1e-5)


@pytest.mark.deep
@pytest.mark.parametrize("size", [BATCH, 6])
def test_padding_counts_in_no_loss_of_a_network_that_labels_each_step(size, install, keras, monkeypatch):
    if keras.__name__ == "keras":
        from keras.src.losses import loss

        monkeypatch.setattr(loss, "reduce_weighted_values", loss.reduce_weighted_values)
        row_weights.spread_weights(loss)
    install()
    rng = np.random.default_rng(0)
    x, y = rng.random((ROWS, size, 3), "f4"), rng.integers(0, 2, (ROWS, size))
    model = keras.Sequential([keras.layers.Input((size, 3)), keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    expected = model.evaluate(x, y, batch_size=BATCH, return_dict=True, verbose=0)
    again = np.arange(6 * BATCH) % ROWS
    weights = np.where(np.arange(len(again)) < ROWS, 1, np.float32(-0.0)).astype("f4")
    rows = tf.data.Dataset.from_tensor_slices((x[again], y[again], weights)).batch(BATCH)
    assert_same([model.evaluate(rows, return_dict=True, verbose=0)], [expected])
