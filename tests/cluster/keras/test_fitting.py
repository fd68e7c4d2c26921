"""What a user does with fit of tf_keras, on two workers fed from a DataFrame; Keras 3 is in the table."""

from pathlib import Path

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame


@pytest.mark.masters("local")
def test_tf_keras_works_too(spark):
    """Keras 2, by TF_USE_LEGACY_KERAS: fit and evaluate on what Spark feeds, equal weights on both workers."""

    def program(args, ctx):
        import tensorflow as tf
        from tf_keras.src.engine import data_adapter

        from tensorflowonspark.keras.provenance import SHARE, sources

        keras = tf.keras
        assert "tf_keras" in keras.Model.__module__
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential(
                [keras.layers.Dense(4, input_shape=(3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
            )
            model.compile("adam", "mse", weighted_metrics=["mae"])
        columns = {"features": "features", "label": "label"}
        history = model.fit(ctx.dataset(16, **columns), epochs=2, verbose=0)
        iterations = int(model.optimizer.iterations.numpy())
        model.fit(iter(ctx.batches(16, **columns)), verbose=0)
        reader = data_adapter.GeneratorDataAdapter(iter(ctx.batches(16, **columns)))
        assert SHARE in sources(reader.get_dataset())  # so a strategy takes it as it is
        ctx.export(model, args)
        return (
            history.history["loss"],
            [weight.numpy() for weight in model.weights],
            iterations,
        )

    path = spark.conf.get("spark.local.dir") + "/exported"
    frame = small_frame(spark, [50, 23])
    results = tfos.run(spark, program, path, num_workers=2, data=frame, env={"TF_USE_LEGACY_KERAS": "1"})
    one, two = results.values()
    assert one[0] == pytest.approx(two[0])
    assert one[2] == two[2] == 2 * 5
    for mine, theirs in zip(one[1], two[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert (Path(path) / "saved_model.pb").exists()
