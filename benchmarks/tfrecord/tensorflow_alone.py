"""Contender: TensorFlow in one process, on the number of cores in its argument.

It also writes the files that all contenders read, and computes the digests of files.
"""

import os
import sys
import time
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.common.rounds import serve_rounds
from benchmarks.tfrecord.rows import KINDS

_BATCH = 2048
_FIELDS = {
    "float": ("float_list", "FloatList"),
    "array<float>": ("float_list", "FloatList"),
    "bigint": ("int64_list", "Int64List"),
    "string": ("bytes_list", "BytesList"),
    "binary": ("bytes_list", "BytesList"),
}


def batches(kind, path, cores):
    """Return a dataset of the files' rows in batches; each core reads its own files.

    (``num_parallel_reads`` before ``batch`` alternates between the files row by row: a fifth of the speed of one file.)
    """
    import tensorflow as tf

    types = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}
    features = {
        column.name: tf.io.FixedLenFeature([64] if "array" in column.type else [], types[_FIELDS[column.type][0]])
        for column in kind.columns
    }

    def rows(files):
        return tf.data.TFRecordDataset(files).batch(_BATCH).map(lambda batch: tf.io.parse_example(batch, features))

    files = [str(file) for file in sorted(Path(path).glob("part-*"))]
    if cores == 1:
        return rows(files)
    together = {"cycle_length": cores, "num_parallel_calls": cores, "deterministic": False}
    return tf.data.Dataset.from_tensor_slices(files).interleave(rows, **together)


def digest(kind, parts):
    """Return the number of rows in arrays, and a digest of each column, as `Kind.digest` has Spark compute them."""
    totals = np.zeros(1 + len(kind.columns))
    for part in parts:
        arrays = [np.asarray(part[column.name]) for column in kind.columns]
        totals += [len(arrays[0]), *(column.digest(each) for column, each in zip(kind.columns, arrays, strict=True))]
    return totals.tolist()


@cache  # each new function is traced again
def encoder(kind):
    """Return a function from a batch of arrays to its ``tf.train.Example`` records, in few calls for each column."""
    import tensorflow as tf

    def encode(message, fields, values):
        rows = tf.shape(values[0])[0]
        sizes = tf.tile([[value.shape[1] for value in values]], [rows, 1])
        return tf.io.encode_proto(sizes, values, fields, f"tensorflow.{message}")[:, tf.newaxis]

    @tf.function
    def encode_all(arrays):
        entries = []
        for column in kind.columns:
            field, message = _FIELDS[column.type]
            values = arrays[column.name]
            values = values if values.shape.rank == 2 else values[:, tf.newaxis]
            feature = encode("Feature", [field], [encode(message, ["value"], [values])])
            name = tf.fill(tf.shape(feature), column.name)
            entries.append(encode("Features.FeatureEntry", ["key", "value"], [name, feature]))
        features = encode("Features", ["feature"], [tf.concat(entries, 1)])
        return encode("Example", ["features"], [features])[:, 0]

    return encode_all


def write_in_batches(kind, arrays, path, files=1):
    """Write arrays as batches of records."""
    import tensorflow as tf

    encode = encoder(kind)
    rows = len(arrays[kind.columns[0].name])
    ends = [rows * number // files for number in range(files + 1)]
    for number, (begin, end) in enumerate(pairwise(ends)):
        with tf.io.TFRecordWriter(f"{path}/part-{number:05d}.tfrecord") as writer:
            for start in range(begin, end, _BATCH):
                part = slice(start, min(start + _BATCH, end))
                for record in encode({name: tf.constant(each[part]) for name, each in arrays.items()}).numpy():
                    writer.write(record)


def write_rows(kind, arrays, path):
    """Write arrays row by row, as TensorFlow's documentation does."""
    import tensorflow as tf

    makers = {
        "float_list": lambda values: tf.train.Feature(float_list=tf.train.FloatList(value=values)),
        "int64_list": lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
        "bytes_list": lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)),
    }
    columns = [(each.name, makers[_FIELDS[each.type][0]], "array" in each.type) for each in kind.columns]
    with tf.io.TFRecordWriter(f"{path}/part-00000.tfrecord") as writer:
        for row in zip(*(arrays[name].tolist() for name, _, _ in columns), strict=True):
            feature = {
                name: make(value if several else [value])
                for (name, make, several), value in zip(columns, row, strict=True)
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


class Arrays:
    """Keeps one kind's rows in memory at a time."""

    def __init__(self):
        self._made = None
        self._arrays = {}

    def of(self, kind, rows):
        """Return arrays of this number of rows."""
        if self._made is None or self._made[0] is not kind or self._made[1] < rows:
            self._made = kind, rows
            self._arrays = {column.name: column.make(np.arange(rows)) for column in kind.columns}
        return {name: each[:rows] for name, each in self._arrays.items()}


def main():
    """Serve rounds."""
    cores = int(sys.argv[1])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])  # TensorFlow takes as many threads
    memory = Arrays()

    def run_round(request):
        kind, action, rows, path = KINDS[request["kind"]], request["action"], request.get("rows"), request.get("path")
        if action == "digest":
            return digest(kind, batches(kind, path, cores))
        if action == "expected":
            return digest(kind, [memory.of(kind, rows)])
        if action == "read":
            started = time.monotonic()
            found = sum(1 for _ in batches(kind, path, cores))
            assert found >= rows // _BATCH
        else:
            arrays = memory.of(kind, rows)
            Path(path).mkdir(parents=True)
            started = time.monotonic()
            if action == "write rows":
                write_rows(kind, arrays, path)
            else:
                write_in_batches(kind, arrays, path, request.get("files", 1))
        return rows / (time.monotonic() - started)

    serve_rounds(run_round)


if __name__ == "__main__":
    main()
