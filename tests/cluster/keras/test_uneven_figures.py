"""Three rows that two workers can't share evenly, from files and by an estimator: one step of gradient descent.

The step is worked out by hand: with a rate of 0.1, y = w * x, x = 1 and w = 0, it makes w 0.2 times the mean of y.
"""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator

pytestmark = [pytest.mark.masters("local"), pytest.mark.slow, pytest.mark.timeout(600)]


def line():
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def fit_on_files(path, ctx):
    """Return the weight and the loss after one epoch."""
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = line()
    history = model.fit(ctx.read_parquet(path).dataset(4, features="x", label="y"), verbose=0).history
    return model.get_weights()[0].item(), history["loss"][0]


def test_rows_of_files_and_of_an_estimator(spark, tmp_path):
    for file, labels in enumerate(([0.0, 0.0], [9.0])):
        pq.write_table(pa.table({"x": [1.0] * len(labels), "y": labels}), tmp_path / f"{file}.parquet")
    for found in tfos.run(spark, fit_on_files, str(tmp_path), num_workers=2).values():
        assert found == pytest.approx((0.60, 27.0))
    frame = spark.createDataFrame([(1.0, 0.0), (1.0, 0.0), (1.0, 9.0)], "features float, label float").coalesce(1)
    fitted = KerasEstimator(line, numWorkers=2, epochs=1, batchSize=4, verbose=0).fit(frame)
    assert fitted.keras().get_weights()[0].item() == pytest.approx(0.60)
    assert fitted.history["loss"] == [pytest.approx(27.0)]
