"""Contender of feed.py: the same rows as numpy arrays in memory, as TensorFlow's tutorials feed a model."""

import json
import time

import numpy as np

import feed_fit
from rounds import contend


def arrays(rows):
    """Return what `feed_rows.KINDS["floats"]` holds."""
    x = np.resize(np.arange(251, dtype=np.float32) / 250, (rows, 784))
    return x, (np.arange(rows) % 10).astype(np.int32)


def dataset(x, y):
    """Return the arrays as a shuffled data set."""
    import tensorflow as tf

    shuffled = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x))
    return shuffled.batch(256).prefetch(tf.data.AUTOTUNE)


def epochs(order):
    """Return the seconds of each pass over the data set."""
    data = dataset(*arrays(order["rows"]))
    seconds = []
    for _ in range(order["epochs"]):
        started = time.monotonic()
        rows = sum(int(x.shape[0]) for x, _ in data)
        seconds.append(time.monotonic() - started)
        assert rows == order["rows"]
    return seconds


def train(order):
    """Return the seconds of each epoch of Keras's ``fit``."""
    x, y = arrays(order["rows"])
    data = dataset(x.reshape(-1, *feed_fit.SHAPES[order["model"]]), y)
    return feed_fit.fit_seconds(order["model"], data, order["epochs"])


def run_round(what):
    """Do what is asked for."""
    order = json.loads(what)
    return epochs(order) if order["do"] == "epochs" else train(order)


if __name__ == "__main__":
    contend(run_round)
