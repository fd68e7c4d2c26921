"""Workers that train one model: it is the same on all before the first step, and what differs later is averaged."""

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame

pytestmark = pytest.mark.masters("local")


def fit_three_times(directory, ctx):
    """Fit from a backup of the first epoch, with a weight that one worker has set, and with frozen weights."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    sent, reduce = [], type(strategy).reduce

    def counting(self, operation, value, axis):
        result = reduce(self, operation, value, axis)
        if tf.executing_eagerly():
            sent.append(int(tf.size(result)))
        return result

    type(strategy).reduce = counting
    dataset = ctx.dataset(16, features="features", label="label")

    def model_of(seed, *, frozen=False):
        keras.utils.set_random_seed(seed)
        with strategy.scope():
            base = keras.layers.Dense(64, trainable=not frozen)
            statistics = keras.layers.BatchNormalization(name="normal")
            layers = [keras.Input((3,)), base, statistics, keras.layers.Dense(1)]
            model = keras.Sequential(layers, name=f"model_{seed}")
            model.compile("adam", "mse")
        return model

    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise InterruptedError

    def backup():
        return keras.callbacks.BackupAndRestore(directory, save_freq=2)

    with pytest.raises(InterruptedError):
        model_of(1).fit(dataset, verbose=0, callbacks=[backup(), Break()])
    resumed = model_of(2)
    resumed.fit(dataset, verbose=0, callbacks=[backup()])

    changed = model_of(3)
    if ctx.index:
        changed.get_layer("normal").gamma.assign(np.full(64, 2.0))
    with pytest.raises(tfos.SpecError) as refused:
        changed.fit(dataset, verbose=0)

    frozen = model_of(4, frozen=True)
    if ctx.index:  # as batches before ``fit`` leave them
        frozen.get_layer("normal").moving_mean.assign(np.ones(64))
    sent.clear()
    frozen.fit(dataset, epochs=2, validation_data=dataset, verbose=0)
    weights = [[each.numpy() for each in model.weights] for model in (resumed, frozen)]
    return weights, str(refused.value), [size for size in sent if size > 30]


def test_workers_begin_with_one_model_and_average_what_steps_change(spark, tmp_path):
    frame = small_frame(spark, [64, 64])
    one, other = tfos.run(spark, fit_three_times, str(tmp_path / "backup"), num_workers=2, data=frame).values()
    for mine, theirs in zip(one[0], other[0], strict=True):
        for first, second in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(first, second)
    for refusal in (one[1], other[1]):
        assert "the models of worker:0 and worker:1 differ before the first step (in 'model_3/normal/gamma')" in (
            refusal
        )
    # The mean that differed, and for each epoch the mean and the variance together; neither the frozen weights, nor
    # anything that has not changed since.
    assert one[2] == [64, 128, 128]


def fit_with_statistics(args, ctx):
    """Fit layers that keep a statistic of rows: each worker of its own, or all of all."""
    import keras
    import tensorflow as tf

    class Remembers(keras.layers.Layer):
        def __init__(self, mean, name):
            super().__init__(name=name)
            self.mean = mean

        def build(self, shape):
            self.kept = self.add_weight((shape[-1],), "zeros", trainable=False, name="kept")

        def call(self, x, training=False):
            if training:
                self.kept.assign(self.mean(x))
            return x

    def of_all(x):
        return tfos.keras.all_mean(keras.ops.mean(x, axis=0), keras.ops.shape(x)[0])

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        layers = [Remembers(lambda x: keras.ops.max(x, axis=0), "own"), Remembers(of_all, "all")]
        layers += [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile("adam", "mse")
    model.fit(ctx.dataset(16, features="features", label="label"), epochs=2, verbose=0)


def test_statistics_that_workers_compute_of_their_own_rows_are_named(spark, caplog):
    tfos.run(spark, fit_with_statistics, num_workers=2, data=small_frame(spark, [40, 30]))
    warnings = [each for each in caplog.messages if "of its own rows" in each]
    assert len(warnings) == 1
    assert "[worker:0]" in warnings[0]
    assert "each worker has computed sequential/own/kept of its own rows" in warnings[0]
