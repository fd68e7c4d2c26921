"""The defect of Keras on several workers, with our repair and without it."""

import os

import numpy as np
import pytest

import tensorflowonspark as tfos


@pytest.mark.slow
@pytest.mark.masters("local")
def test_plain_keras_fails_and_ours_does_not(spark):
    """The defect as users meet it: two workers, fit on a numpy array; with our repair taken out it must fail."""

    def program(args, ctx):
        import keras
        import tensorflow as tf

        if args == "plain":
            from tensorflowonspark.keras.hooks import place_of

            owner, name = place_of(keras, "Model.make_train_function")
            setattr(owner, name, vars(owner)[name].__wrapped__)
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(np.ones((16, 3), "f4"), np.ones(16, "f4"), verbose=0)
        return os.environ["TF_CONFIG"] != ""

    with pytest.raises(tfos.NodeError):
        tfos.run(spark, program, "plain", num_workers=2)
    assert all(tfos.run(spark, program, "ours", num_workers=2).values())
