"""Many small files on a store that answers late: two workers, to the first batch, in a first run and in a later one.

``python -m benchmarks.files.many parquet`` or ``tfrecord``, with ``--files`` and ``--seconds`` (before each answer).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common.spark import two_slots

ROWS = 20  # of a file
_AGE = 3600  # of the files, in seconds: what is found in younger ones is not kept


def write_files(directory, kind, files):
    """Write files of 20 rows, which have a number and 32 float32."""
    from tensorflowonspark.tfrecords.encode import encode
    from tensorflowonspark.tfrecords.framing import framed

    then = time.time() - _AGE
    for number in range(files):
        values = pa.array(np.random.default_rng(number).random(32 * ROWS, np.float32))
        columns = {
            "id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
            "x": pa.FixedSizeListArray.from_arrays(values, 32).cast(pa.list_(pa.float32())),
        }
        path = Path(directory, f"{number:06}.{kind}")
        if kind == "parquet":
            pq.write_table(pa.table(columns), path)
        else:
            path.write_bytes(framed(encode(pa.record_batch(columns), sequences=False)).tobytes())
        os.utime(path, (then, then))


def program(args, ctx):
    """Read an epoch, or its first batch; return the seconds to each, and the number of rows."""
    os.environ["XDG_CACHE_HOME"] = args["cache"]
    begin = time.perf_counter()
    feed = getattr(ctx, f"read_{args['kind']}")(args["path"], cache=None)
    opened, first, rows = time.perf_counter() - begin, None, 0
    for batch in feed.batches(128, features=["id", "x"], seed=1):
        first = first or time.perf_counter() - begin
        rows += int((batch["sample_weight"] != 0).sum())
    return {"opened": opened, "first": first, "epoch": time.perf_counter() - begin, "rows": rows}


def main():
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["parquet", "tfrecord"])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seconds", default="0.05", help="before each answer of the store")
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    import tensorflowonspark as tfos

    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    with tempfile.TemporaryDirectory(prefix="tfos-many-") as directory:
        files, cache = Path(directory, "bucket", "files"), Path(directory, "cache")
        files.mkdir(parents=True)
        write_files(files, options.kind, options.files)
        command = [sys.executable, "-m", "benchmarks.common.object_store", str(files.parent), options.seconds]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as store:
            endpoint = store.stdout.readline().strip()
            s3 = {"endpoint": endpoint, "access_key": "one", "secret_key": "two", "path_style_access": "true"}
            args = {"kind": options.kind, "path": "s3a://bucket/files", "cache": str(cache)}
            with two_slots(**{f"spark_hadoop_fs_s3a_{name}": value for name, value in s3.items()}) as spark:
                for run in range(options.runs):
                    found = list(tfos.run(spark, program, args, num_workers=2).values())
                    if sum(each["rows"] for each in found) != options.files * ROWS:
                        sys.exit("the workers have read another number of rows")
                    most = {name: max(each[name] for each in found) for name in ("opened", "first", "epoch")}
                    shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in most.items())
                    print(f"{options.kind}, run {run + 1}:", shown, flush=True)
            store.stdin.close()


if __name__ == "__main__":
    main()
