"""The nodes' program: a Keras training on two workers that records the time of each of its parts."""

import os
import time
from contextlib import suppress
from pathlib import Path

STEPS_BEFORE = 12  # until the node is killed
STEPS_AFTER = 3  # of the attempt in which nobody is killed
SAVE_EVERY = 5


def program(args, ctx):
    """Train until the driver kills a node; in an attempt without a kill, train some steps only."""
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

    class StepTimes(keras.callbacks.Callback):
        """Runs after the callback that restores."""

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
                raise Enough  # on all workers at the same step; Keras's own stop waits for the end of the epoch

    checkpoint = ctx.checkpoint(f"{args['directory']}/checkpoints").callback(every=SAVE_EVERY)
    with suppress(Enough):
        model.fit(rows, epochs=1000, verbose=0, callbacks=[checkpoint, StepTimes()])
    return int(model.optimizer.iterations.numpy())


class Enough(Exception):
    """The training has shown that it goes on."""


class Notes:
    """The times of one node in one attempt; each is a file, with the time and the id of the node's process."""

    def __init__(self, directory, attempt, index):
        self._prefix = f"{directory}/{attempt}-{index}-"

    def __call__(self, what):
        partial = Path(f"{self._prefix}{what}.partial")
        partial.write_text(f"{time.time()} {os.getpid()}")
        partial.rename(f"{self._prefix}{what}")


def noted(directory, what, attempt=0, nodes=2):
    """Return the latest time of all nodes, and the last node's process; None unless all nodes have recorded theirs."""
    paths = [Path(f"{directory}/{attempt}-{index}-{what}") for index in range(nodes)]
    if not all(path.exists() for path in paths):
        return None
    recorded = [path.read_text().split() for path in paths]
    return max(float(time) for time, _ in recorded), int(recorded[-1][1])
