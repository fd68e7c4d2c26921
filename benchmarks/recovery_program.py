"""What the nodes of recovery.py run: a Keras training on two workers that notes when it came to each of its parts."""

import os
import time
from contextlib import suppress
from pathlib import Path

STEPS_BEFORE = 12  # the node is killed after so many
STEPS_AFTER = 3  # so many are taken once nobody is killed any more
SAVE_EVERY = 5


def program(args, ctx):
    """Train until the driver kills a node; once it has recovered, or nobody is killed, only some steps more."""
    note = Notes(args["directory"], ctx.attempt, ctx.index)
    note("up")
    import keras
    import tensorflow as tf

    note("imported")
    keras.utils.set_random_seed(1)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        layers = [keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.layers.Input((784,)), *layers])
        model.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    note("built")
    rows = ctx.dataset(64, features="features", label="label", seed=1)
    note("fed")

    class Watch(keras.callbacks.Callback):
        """Comes after the callback that restores."""

        steps = 0

        def on_train_begin(self, logs=None):
            note("restored")

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == 1:
                note("step")
            if self.steps == STEPS_BEFORE:
                note("busy")
            if self.steps == STEPS_AFTER and (ctx.attempt or not args["kill"]):
                raise Enough  # on all workers at the same step; Keras's own stop would wait for the epoch's end

    checkpoint = ctx.checkpoint(f"{args['directory']}/checkpoints").callback(every=SAVE_EVERY)
    with suppress(Enough):
        model.fit(rows, epochs=1000, verbose=0, callbacks=[checkpoint, Watch()])
    return int(model.optimizer.iterations.numpy())


class Enough(Exception):
    """The training has shown that it goes on."""


class Notes:
    """When one node in one attempt came to something; each note is a file, with the time and the node's process."""

    def __init__(self, directory, attempt, index):
        self._prefix = f"{directory}/{attempt}-{index}-"

    def __call__(self, what):
        partial = Path(f"{self._prefix}{what}.partial")
        partial.write_text(f"{time.time()} {os.getpid()}")
        partial.rename(f"{self._prefix}{what}")


def noted(directory, what, attempt=0, nodes=2):
    """Return when the last of the nodes came to something, and the last node's process; None if not all have."""
    paths = [Path(f"{directory}/{attempt}-{index}-{what}") for index in range(nodes)]
    if not all(path.exists() for path in paths):
        return None
    words = [path.read_text().split() for path in paths]
    return max(float(moment) for moment, _ in words), int(words[-1][1])
