"""What the workers of every contender do: train the same model from the same weights, and note the time.

It imports NumPy alone: contenders have environments and a Keras of their own.
"""

import time
from itertools import pairwise

import numpy as np

from benchmarks.peers.passes import WIDTH, most_memory

EPOCHS = 3
BATCH = 256  # rows of one step over both workers
CLASSES = 10
_RATE = 0.05
STAGES = ("import", "model", "data", "fit", "step")  # of a worker's program, each up to the next
LAYERS = {"small": (64,), "middle": (2048, 1664), "large": (6656, 6656)}  # the widths of the hidden ones
_STEPS = {"small": 100, "middle": 10, "large": 2}  # of an epoch


def steps_of(name, scale):
    """Return the number of steps of an epoch, which is even: each worker then has whole batches alone."""
    return 2 * max(1, round(_STEPS[name] * scale / 2))


def size_of(name):
    """Return the number of a model's weights."""
    widths = [WIDTH, *LAYERS[name], CLASSES]
    return sum((before + 1) * after for before, after in pairwise(widths))


def build(keras, name):
    """Return the compiled model, whose weights are drawn with NumPy and so equal everywhere.

    Parameters
    ----------
    keras : module
        Keras 3 or ``tf_keras``.
    name : str
        One of `LAYERS`.
    """
    layers = [keras.layers.Dense(width, "relu", kernel_initializer="zeros") for width in LAYERS[name]]
    last = keras.layers.Dense(CLASSES, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, last])
    model.compile(keras.optimizers.SGD(_RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    model.set_weights([_initial(random, tuple(each.shape)) for each in model.weights])
    return model


def _initial(random, shape):
    """Return Glorot's uniform weights for a kernel, and zeros for a bias."""
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    return (random.random(shape, np.float32) * 2 - 1) * np.float32(np.sqrt(6 / sum(shape)))


def train(keras, model, rows, times, steps_per_epoch=None):
    """Train on a worker.

    Parameters
    ----------
    keras : module
        The model's.
    model : keras.Model
        From `build`.
    rows : object
        What ``fit`` takes; a pass over it is an epoch, unless it has no end.
    times : list of float
        When the worker's program began, had imported its libraries, and had its model.
    steps_per_epoch : int, optional
        Of rows without an end.

    Returns
    -------
    dict
        The times at which each of `STAGES` began, and at which the first step and each epoch ended; the number of
        steps, the mean loss of the last epoch, and the most bytes of memory.
    """
    times.append(time.time())
    firsts, ends, steps = [], [], []

    def on_step(_, logs):
        steps.append(None)
        if not firsts:
            float(logs["loss"])  # waits until the step has been computed
            firsts.append(time.time())

    notes = keras.callbacks.LambdaCallback(
        on_train_begin=lambda _: times.append(time.time()),
        on_train_batch_end=on_step,
        on_epoch_end=lambda _, __: ends.append(time.time()),
    )
    history = model.fit(rows, epochs=EPOCHS, steps_per_epoch=steps_per_epoch, verbose=0, callbacks=[notes]).history
    return {
        "stages": [*times, firsts[0]],
        "ends": ends,
        "steps": len(steps),
        "loss": float(history["loss"][-1]),
        "memory": most_memory(),
    }


def spans(found, steps):
    """Return the seconds of each stage of a training, and its other figures.

    Parameters
    ----------
    found : dict
        The times of the call, of the end of writing files and of the call's return, and what `train` has returned on
        each of the ``workers``. A stage ends when it has ended on both.
    steps : int
        Of an epoch.

    Raises
    ------
    ValueError
        If a worker has taken another number of steps.
    """
    workers = found["workers"]
    taken = [each["steps"] for each in workers]
    if taken != [EPOCHS * steps] * 2:
        raise ValueError(f"the workers have taken {taken} steps, and not {EPOCHS * steps} each")
    began, first = (max(each["stages"][place] for each in workers) for place in (0, -1))
    stages = [np.diff(each["stages"]) for each in workers]
    begin, end = (max(each["ends"][place] for each in workers) for place in (0, -1))
    return {
        "write": found["written"] - found["call"],
        "start": began - found["written"],
        "program": first - began,
        "stages": dict(zip(STAGES, np.mean(stages, axis=0).tolist(), strict=True)),
        "first": first - found["call"],
        "epoch": (end - begin) / (EPOCHS - 1),
        "whole": found["returned"] - found["call"],
        "memory": max(each["memory"] for each in workers),
        "loss": sum(each["loss"] for each in workers) / len(workers),
    }
