"""Contenders: processes that read all rows of a directory of Parquet files once per round."""

import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import two_slots

BYTES_PER_ROW = 784 * 4 + 8
_ROWS_PER_FILE, _ROWS_PER_GROUP = 100_000, 20_000
_BATCH = 1024


def write_files(directory, rows):
    """Write rows of 784 float32 and a label."""
    with ProcessPoolExecutor(2) as writers:
        starts = range(0, rows, _ROWS_PER_FILE)
        jobs = [writers.submit(_write, directory, start, min(_ROWS_PER_FILE, rows - start)) for start in starts]
        for job in jobs:
            job.result()


def _write(directory, start, rows):
    images = np.random.default_rng(start).random((rows, 784), np.float32)
    table = pa.table(
        {
            "image": pa.FixedSizeListArray.from_arrays(images.reshape(-1), 784).cast(pa.list_(pa.float32())),
            "label": pa.array(np.arange(start, start + rows) % 10),
        }
    )
    path = Path(directory, f"{start:012}.parquet")
    pq.write_table(table, path, row_group_size=_ROWS_PER_GROUP, compression="none", use_dictionary=False)


def _memory(_=None):
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _scan(paths):
    batches = ds.dataset(paths).scanner(use_threads=False).to_batches()
    return sum(batch.num_rows for batch in batches), _memory()


@contextmanager
def scanner(directory):
    """Yield a function that scans the files with two processes."""
    paths = sorted(map(str, Path(directory).glob("*.parquet")))

    def one_round(_request):
        begin = time.perf_counter()
        found = list(processes.map(_scan, [paths[::2], paths[1::2]]))
        seconds = time.perf_counter() - begin
        return {
            "rows": sum(rows for rows, _ in found),
            "seconds": seconds,
            "memory": max(memory for _, memory in found),
        }

    with ProcessPoolExecutor(2) as processes:
        yield one_round


def program(directory, ctx):
    """Read an epoch on a node."""
    begin = time.perf_counter()
    feed = ctx.read_parquet(directory, cache=None)
    first, rows = None, 0
    for batch in feed.batches(2 * _BATCH, features="image", label="label", seed=1):
        first = first or time.perf_counter() - begin
        rows += int((batch[2] != 0).sum())
    seconds = time.perf_counter() - begin
    disk = sum(
        os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(ctx.scratch) for name in names
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rows": rows, "seconds": seconds, "first": first, "disk": disk, "memory": memory}


@contextmanager
def ours(directory):
    """Yield a function that reads them on two nodes."""
    import tensorflowonspark as tfos

    def one_round(_request):
        found = list(tfos.run(spark, program, directory, num_workers=2).values())
        most = {name: max(each[name] for each in found) for name in ("seconds", "first", "disk", "memory")}
        return {**most, "rows": sum(each["rows"] for each in found)}

    with two_slots() as spark:
        yield one_round


if __name__ == "__main__":
    with {"ours": ours, "scanner": scanner}[sys.argv[1]](*sys.argv[2:]) as one_round:
        serve_rounds(one_round)
