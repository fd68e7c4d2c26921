"""The rows that all programs train on, how workers have them, and the steps that one process takes of the same rows."""

import math

import numpy as np
import pyarrow as pa

from tests.support.uneven_batches import in_steps

ROWS = 64
_RNG = np.random.default_rng(5)
_LENGTHS = np.arange(ROWS) * 3 % 7  # of tokens: 0 to 6, so that one row is all mask
_SEEN = np.arange(6) < _LENGTHS[:, None]
_X = _RNG.normal(size=(ROWS, 4)).astype("f4")
_TARGET = (_X @ np.array([1.0, -2.0, 0.5, 0.25], "f4") + 0.5 + 0.3 * np.sin(np.arange(ROWS))).astype("f4")

COLUMNS = {
    "x": _X,
    "other": np.roll(_X, 1, axis=0) * 0.8 + 0.1,  # another domain, another view
    "noise": _RNG.normal(size=(ROWS, 4)).astype("f4"),  # in place of what a program draws
    "code": _RNG.normal(size=(ROWS, 2)).astype("f4"),  # in place of a latent vector that a program draws
    "y": _TARGET,
    "class": (np.arange(ROWS) * 5 % 3).astype("i4"),
    "pair": _TARGET[:, None] * np.array([1.0, -0.5], "f4"),
    "w": (np.arange(ROWS) % 5 / 2).astype("f4"),  # of which some are zero
    "log_p": np.where(np.arange(ROWS) % 3, -0.25 * (np.arange(ROWS) % 4 + 1), 0.0).astype("f4"),
    "tokens": np.where(_SEEN, 1 + (np.arange(ROWS)[:, None] + 2 * np.arange(6)) % 4, 0).astype("i4"),
    "labels": np.where(_SEEN, 1 + (np.arange(ROWS)[:, None] * 2 + np.arange(6)) % 4, 0).astype("i4"),
    "chosen": _SEEN.astype("f4"),  # weights of tokens
    "series": np.where(_SEEN, np.sin(np.arange(ROWS)[:, None] + np.arange(6)), 0.0).astype("f4"),
    "step": (np.arange(ROWS) * 7 % 10).astype("f4") / 10,  # of a diffusion
    "image": _RNG.uniform(size=(ROWS, 4, 4, 1)).astype("f4"),
}
COLUMNS = {name: np.ascontiguousarray(each) for name, each in COLUMNS.items()}
SHAPES = {name: each.shape[1:] for name, each in COLUMNS.items() if each.ndim > 1}
BATCH = 8

# By number of workers: the rows of each one.
FEEDS = {
    2: {
        "even": [list(range(16)), list(range(16, 32))],
        "odd": [list(range(18)), list(range(18, 35))],
        "uneven": [list(range(24)), list(range(24, 31))],
        "none": [[], list(range(18))],
    },
    3: {
        "even": [list(range(12)), list(range(12, 24)), list(range(24, 36))],
        "odd": [list(range(12)), list(range(12, 24)), list(range(24, 35))],
        "uneven": [list(range(3)), list(range(3, 23)), list(range(23, 30))],
        "none": [list(range(14)), [], list(range(14, 22))],
    },
}


def batch_size(workers):
    """Return the rows of a step over all workers, which all backends can share evenly while there are rows."""
    return BATCH if workers == 2 else 9


def steps_of(workers, shape):
    """Return the rows of each step of all workers together."""
    return in_steps(FEEDS[workers][shape], batch_size(workers))


def arrow_partitions(workers, shape):
    """Return the partitions of a feed as Arrow batches, for a cluster without Spark."""
    return [[_record_batch(rows)] for rows in FEEDS[workers][shape]]


def _record_batch(rows):
    arrays = {}
    for name, values in COLUMNS.items():
        kind = pa.from_numpy_dtype(values.dtype)
        flat = values[rows].reshape(len(rows), math.prod(values.shape[1:]))
        arrays[name] = pa.array(list(flat), pa.list_(kind)) if values.ndim > 1 else pa.array(flat[:, 0], kind)
    return pa.record_batch(arrays)


def frame(spark, workers, shape):
    """Return the partitions of a feed as a DataFrame."""
    made = [
        [tuple(values[row].ravel().tolist() if values.ndim > 1 else values[row].item() for values in COLUMNS.values())
         for row in rows]
        for rows in FEEDS[workers][shape]
    ]  # fmt: skip
    kinds = {"f": "float", "i": "int"}
    types = [kinds[values.dtype.kind] if values.ndim == 1 else f"array<{kinds[values.dtype.kind]}>"
             for values in COLUMNS.values()]  # fmt: skip
    rdd = spark.sparkContext.parallelize(made, len(made)).flatMap(list)
    return spark.createDataFrame(rdd, ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, types, strict=True)))
