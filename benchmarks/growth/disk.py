"""Contenders: files that nodes read themselves, and checkpoints that a node saves and restores, on a local disk."""

import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import cloudpickle

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import two_slots
from benchmarks.files import many

_KINDS = "parquet", "tfrecord"
_MEGABYTE = 1_000_000
_VARIABLES = 16  # of a checkpoint


@contextmanager
def files(spark):
    """Yield a function that has two nodes read a number of files, as in the first run of an application."""
    import tensorflowonspark as tfos

    cloudpickle.register_pickle_by_value(many)  # the nodes can't import it
    with tempfile.TemporaryDirectory() as directory:

        def seconds(kind, count):
            path = Path(directory, f"{kind}-{count}")
            if not path.exists():
                path.mkdir()
                many.write_files(path, kind, count)
            with tempfile.TemporaryDirectory() as cache:
                args = {"kind": kind, "path": str(path), "cache": cache}
                found = list(tfos.run(spark, many.program, args, num_workers=2).values())
            assert sum(each["rows"] for each in found) == many.ROWS * count, f"{found} of {count} files"
            return max(each["first"] for each in found)

        yield lambda request: {kind: seconds(kind, request["size"]) for kind in _KINDS}


def save_and_restore(args, ctx):
    """Save variables, and restore them; return the seconds of both."""
    import tensorflow as tf

    values = args["bytes"] // 4 // _VARIABLES
    state = tf.train.Checkpoint(**{f"v{each}": tf.Variable(tf.random.uniform([values])) for each in range(_VARIABLES)})
    checkpoint = ctx.checkpoint(args["directory"], keep=1, wait=True)
    started = time.monotonic()
    checkpoint.save(state, step=1)
    saved = time.monotonic()
    expected = [float(each[-1]) for each in _variables(state)]
    for each in _variables(state):
        each.assign(tf.zeros([values]))
    began = time.monotonic()
    assert checkpoint.restore(state) == 1
    restored = time.monotonic()
    assert [float(each[-1]) for each in _variables(state)] == expected
    return {"save": saved - started, "restore": restored - began}


def _variables(state):
    return [getattr(state, f"v{each}") for each in range(_VARIABLES)]


@contextmanager
def checkpoints(spark):
    """Yield a function that has one node save and restore a checkpoint of so many megabytes."""
    import tensorflowonspark as tfos

    with tempfile.TemporaryDirectory() as directory:

        def run_round(request):
            path = os.path.join(directory, "checkpoints")
            args = {"directory": path, "bytes": request["size"] * _MEGABYTE}
            try:
                return tfos.run(spark, save_and_restore, args, num_workers=1).chief
            finally:
                shutil.rmtree(path, ignore_errors=True)

        yield run_round


def main():
    """Serve the rounds of one part."""
    part = {"files": files, "checkpoints": checkpoints}[sys.argv[1]]
    with two_slots() as spark, part(spark) as run_round:
        serve_rounds(run_round)


if __name__ == "__main__":
    main()
