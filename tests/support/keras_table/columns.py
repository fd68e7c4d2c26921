"""The columns of the table: what a cell gets of its strategy, its rows and its place."""

import time
from contextlib import nullcontext
from functools import reduce
from pathlib import Path

import numpy as np

from tests.support.keras_table import rows

ONE_PROCESS = "one process"
ONE_PROCESS_ON_JAX = "one process on JAX"
NONE = "no strategy"
MULTI_WORKER = "MultiWorkerMirrored"
PARAMETER_SERVER = "ParameterServer"
JAX = "JAX"
COLUMNS = (MULTI_WORKER, NONE, PARAMETER_SERVER, JAX)
SEVERAL_WORKERS = (MULTI_WORKER, JAX)  # of which each has rows of its own


class Column:
    """What is the same for all cells of a column.

    Attributes
    ----------
    name : str
        The column's.
    strategy : tf.distribute.Strategy or None
        What the cells build their models in.
    x, y : np.ndarray
        The rows of the even feed, in the order of one process; all workers have all of them.
    """

    def __init__(self, name, directory, strategy=None, ctx=None, coordinator=None):
        self.name = name
        self.coordinator = coordinator
        self.strategy = strategy
        self.ctx = ctx
        self.directory = Path(directory)
        self.cell = ""
        self.ids = rows.in_one_process(rows.EVEN)
        self.x, self.y = rows.features(self.ids), rows.labels(self.ids)
        self.uneven_ids = rows.in_one_process(rows.UNEVEN)
        self._met = 0
        self._made = {}

    def scope(self):
        return self.strategy.scope() if self.strategy else nullcontext()

    def even(self, label="label"):
        """Return the rows of the even feed in global batches of 16, 16 and 3: ``(x, y, weight)``."""
        if self.ctx is None:
            return self._plain(self.ids, label)
        if self.coordinator:
            return self.ctx.feed().per_worker(rows.BATCH, features="features", label=label, shuffle=False)()
        if label not in self._made:  # to make one takes as long as a step
            self._made[label] = self.ctx.dataset(rows.BATCH, features="features", label=label, shuffle=False)
        return self._made[label]

    def uneven(self, label="label"):
        """Return the rows of the uneven feed; in one process these are the real ones."""
        if self.ctx is None:
            return self._plain(self.uneven_ids, label)
        if self.coordinator:
            validation = self.ctx.feed().validation
            return validation.per_worker(rows.BATCH, features="features", label=label, shuffle=False)()
        return self.ctx.validation_dataset(rows.BATCH, features="features", label=label)

    def filled_up(self):
        """Return the uneven rows in the steps of several workers, of which one fills its batches up."""
        if self.ctx is None:
            steps = [self._plain(ids, "label") for ids in rows.in_steps(rows.UNEVEN)]
            return reduce(lambda one, other: one.concatenate(other), steps)
        return self.uneven()

    def check_arrays(self):
        """Raise an error if a cell has changed the arrays that it was given, and give the next cell others."""
        was = self.x, self.y
        self.x, self.y = rows.features(self.ids), rows.labels(self.ids)
        for mine, given in zip((self.x, self.y), was, strict=True):
            np.testing.assert_array_equal(given, mine, "the program's own arrays were changed")

    def place(self):
        """Return a directory that all workers share, of this cell's own."""
        path = self.directory / "files" / f"{self.name} {self.cell}".replace("/", "_").replace(" ", "_")
        path.mkdir(parents=True, exist_ok=True)
        return path

    def meet(self, seconds=25):
        """Wait until all workers are here."""
        self._met += 1
        workers = self.ctx.num_workers if self.ctx and self.name in SEVERAL_WORKERS else 1
        if workers == 1:
            return
        wait_for_all(self.place(), f"met-{self._met}", self.ctx.index, workers, seconds)

    def begin(self, cell):
        self.cell = cell
        self._met = 0

    def _plain(self, ids, label):
        import tensorflow as tf

        y = np.array(ids, "i8") if label == "id" else rows.labels(ids)
        weights = np.ones(len(ids), "f4")
        return tf.data.Dataset.from_tensor_slices((rows.features(ids), y, weights)).batch(rows.BATCH)


def wait_for_all(directory, name, index, workers, seconds):
    """Wait until all workers have come to the place of this name in their program."""
    (directory / f"{name}-{index}").touch()
    end = time.monotonic() + seconds
    while not all((directory / f"{name}-{each}").exists() for each in range(workers)):
        if time.monotonic() > end:
            raise TimeoutError(f"the other worker has not come to this place within {seconds} s")
        time.sleep(0.005)
