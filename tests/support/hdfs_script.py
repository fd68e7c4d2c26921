"""A script for ``tfos run --data``: it trains on the records that it is fed, with checkpoints and its model in HDFS."""

import sys

import keras
import tensorflow as tf

import tensorflowonspark as tfos

(directory,) = sys.argv[1:]
ctx = tfos.context()
keras.utils.set_random_seed(1)
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
dataset = ctx.dataset(32, features="features", label="label", shapes={"features": (2,)})
checkpoint = ctx.checkpoint(f"{directory}/checkpoints")
history = model.fit(dataset, epochs=5, verbose=0, callbacks=[checkpoint.callback()])
ctx.export(model, f"{directory}/model")
print("epoch", checkpoint.latest().epoch, "accuracy", history.history["accuracy"][-1])
