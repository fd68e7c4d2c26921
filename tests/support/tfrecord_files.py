"""TFRecord files without Spark and TensorFlow: writes of rows, and reads as a node does."""

import pyarrow as pa

from tensorflowonspark.columns.schema import arrow_schema
from tensorflowonspark.node.feed.tfrecord_source import tfrecord_splits
from tensorflowonspark.tfrecords.encode import encode
from tensorflowonspark.tfrecords.framing import framed


def write_rows(path, sequences=False, **columns):
    """Write a file of columns, each a list or an Arrow array; return its path as a string."""
    batch = pa.RecordBatch.from_pydict(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(framed(encode(batch, sequences)))
    return str(path)


def read_rows(*paths, schema=None, columns=None, **options):
    """Return the rows of some files, as dictionaries."""
    splits, _ = tfrecord_splits([*map(str, paths)], schema and arrow_schema(schema), columns, options)
    return [row for split in splits for batch in split.batches() for row in batch.to_pylist()]
