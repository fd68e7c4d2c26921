"""DataFrames and TFRecord files: writing, reading and conversion of rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError, TFRecordError
from tensorflowonspark.tfrecords.dataframes import read_tfrecord, write_files
from tensorflowonspark.tfrecords.decode import decode
from tensorflowonspark.tfrecords.encode import encode
from tensorflowonspark.tfrecords.examples import Encoded
from tensorflowonspark.tfrecords.framing import BLOCK_BYTES, Block
from tensorflowonspark.tfrecords.infer import Seen, check_written, columns_of, merged, seen_in_block
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.wire_format import PADDING_BYTES, BadRecords, Spans
from tensorflowonspark.tfrecords.writing import OutputFiles
from tensorflowonspark.v2.deprecation import warn_deprecated
from tensorflowonspark.v2.program import session_of
from tensorflowonspark.v2.values import arrow_types, as_batch, map_values

if TYPE_CHECKING:
    import tensorflow as tf
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType

__all__ = ["fromTFExample", "infer_schema", "isLoadedDF", "loadTFRecords", "saveAsTFRecords", "toTFExample"]

_FIRST_ROWS, _MAX_ROWS, _TARGET_BYTES = 16, 4096, 16 << 20  # of the first piece, of any piece, of a typical piece

_Pairs = list[tuple[bytearray, None]]

_loaded: "WeakSet[DataFrame]" = WeakSet()


def saveAsTFRecords(df: "DataFrame", output_dir: str) -> None:
    """Write a DataFrame as TFRecord files of ``tf.train.Example``, ``part-r-*``, one for each partition.

    Parameters
    ----------
    df : DataFrame
        Integers, booleans, dates and timestamps become int64 (days, or microseconds), floats become float, and strings,
        binary values and decimals become bytes; arrays of these have several values. A null has no feature.
    output_dir : str
        A new directory; without a scheme it is on Hadoop's default file system.

    Raises
    ------
    SpecError
        If the directory exists, or a column can't be written.
    """
    warn_deprecated("dfutil.saveAsTFRecords", "tensorflowonspark.write_tfrecord(df, path)")
    storage.use(settings := storage.hadoop_settings(df.sparkSession))
    path = _absolute(output_dir)
    output = OutputFiles(path, Options(), prefix="part-r")  # programs of 2.x look for files of these names
    if output.exists():
        raise SpecError(
            f"there is something at {path}: take another directory, or "
            "tensorflowonspark.write_tfrecord(df, path, mode='overwrite')"
        )
    check_written(df.schema, Options())
    write_files(df, output, settings)


def loadTFRecords(sc: "SparkContext", input_dir: str, binary_features: Sequence[str] = ()) -> "DataFrame":
    """Return the records of TFRecord files as a DataFrame.

    Parameters
    ----------
    sc : SparkContext
        The application.
    input_dir : str
        Directories, files or wildcards, separated by commas; without a scheme they are on Hadoop's default file
        system.
    binary_features : sequence of str
        Features that are binary, not strings, whatever their values.

    Returns
    -------
    DataFrame
        Columns sorted by name. Their types, inferred from all records by one Spark job, are long, double, string or
        binary, or arrays of these where any record has several values. A record without a feature has a null.

    Raises
    ------
    SpecError
        If there are no records, or their types conflict: ``tensorflowonspark.read_tfrecord`` takes a schema.
    """
    warn_deprecated("dfutil.loadTFRecords", "tensorflowonspark.read_tfrecord(spark, path)")
    spark = session_of(sc)
    storage.use_session(spark)
    paths = [_absolute(each) for each in input_dir.split(",")]
    frame = read_tfrecord(spark, paths, float_type="double", binary_features=binary_features, sample_records=0)
    _loaded.add(frame)
    return frame


def isLoadedDF(df: "DataFrame") -> bool:
    """Return whether `loadTFRecords` returned this very DataFrame, not one derived from it."""
    return df in _loaded


def _absolute(path: str) -> str:
    return storage.absolute_path(path, str(Path.cwd()))


def toTFExample(dtypes: Sequence[tuple[str, str]]) -> Callable[[Iterable[Sequence[Any]]], _Pairs]:
    r"""Return a function for ``df.rdd.mapPartitions`` that converts rows to serialized ``tf.train.Example`` messages.

    Parameters
    ----------
    dtypes : sequence of (str, str)
        Names and types of the columns: ``df.dtypes``. `saveAsTFRecords` lists their features' types.

    Returns
    -------
    callable
        Takes the rows of a partition and returns a list of ``(bytearray, None)``: key and value for Hadoop's output
        format for TFRecord files.

    Raises
    ------
    SpecError
        If an Example can't have one of the columns.

    Examples
    --------
    >>> toTFExample([("y", "bigint")])([(1,), (None,)])
    [(bytearray(b'\n\x0c\n\n\n\x01y\x12\x05\x1a\x03\n\x01\x01'), None), (bytearray(b'\n\x00'), None)]
    """
    types = arrow_types(dtypes)

    def encoded(rows: Iterable[Sequence[Any]]) -> _Pairs:
        rows, count, pairs = iter(rows), _FIRST_ROWS, []
        while piece := list(islice(rows, count)):
            messages = encode(as_batch(piece, dtypes, types), sequences=False)
            pairs += [(bytearray(message), None) for message in messages.to_pylist()]
            count = max(1, min(_MAX_ROWS, len(piece) * _TARGET_BYTES // max(1, messages.nbytes)))
        return pairs

    return encoded


def fromTFExample(iter: Iterable[tuple[bytes, Any]], binary_features: Sequence[str] = ()) -> "list[Row]":  # noqa: A002
    r"""Return rows for the serialized ``tf.train.Example`` messages of a partition.

    Parameters
    ----------
    iter : iterable of (bytes, anything)
        The messages, as ``bytes`` or ``bytearray``.
    binary_features : sequence of str
        Features that are binary, not strings, whatever their values.

    Returns
    -------
    list of Row
        One for each message, all with the fields of any of them, sorted by name. Types are those of `loadTFRecords`,
        inferred from all these messages.

    Raises
    ------
    TFRecordError
        If a message can't be read.

    Examples
    --------
    >>> fromTFExample([(b"\n\x0c\n\n\n\x01y\x12\x05\x1a\x03\n\x01\x01", None), (b"\n\x00", None)])
    [Row(y=1), Row(y=None)]
    """
    from pyspark.sql import Row

    options = _reading(binary_features)
    blocks = list(_blocks(message for message, _ in iter))
    seen: dict[str, Seen] = {}
    columns = columns_of(reduce(merged, (seen_in_block(each, options) for each in blocks), seen), options)
    row = Row(*(column.name for column in columns))
    return [row(*values) for block in blocks for values in _rows(block, columns)]


def infer_schema(example: "tf.train.Example", binary_features: Sequence[str] = ()) -> "StructType":
    """Return the schema that `loadTFRecords` infers for a file of this one record.

    Parameters
    ----------
    example : tf.train.Example
        The record.
    binary_features : sequence of str
        Features that are binary, not strings, whatever their values.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    options = _reading(binary_features)
    (block,) = _blocks([example.SerializeToString()])
    return from_arrow_schema(pa.schema(columns_of(seen_in_block(block, options), options)))


def _reading(binary_features: Sequence[str]) -> Options:
    return Options.of({"floatType": "double", "binaryFeatures": binary_features})


def _blocks(messages: Iterable[bytes]) -> Iterator[Block]:
    """Yield messages in blocks like those that are read from files."""
    piece: list[bytes] = []
    size = offset = 0
    for message in messages:
        piece.append(message)
        size += len(message)
        if size >= BLOCK_BYTES:
            yield _block(piece, offset)
            piece, size, offset = [], 0, offset + len(piece)
    if piece:
        yield _block(piece, offset)


def _block(messages: Sequence[bytes], offset: int) -> Block:
    """Return messages as a block; its offset is the number of earlier messages, not of bytes."""
    data = np.frombuffer(b"".join([*messages, bytes(PADDING_BYTES)]), np.uint8)
    bounds = np.cumsum([0, *map(len, messages)])
    spans = Spans(bounds[:-1], bounds[1:], np.arange(len(messages)))
    return Block(offset, data, spans, np.empty(0, np.int64))


def _rows(block: Block, columns: list[pa.Field]) -> Iterable[tuple[Any, ...]]:
    try:
        arrays = decode(Encoded(block.data, block.spans), columns, sequences=False)
    except BadRecords as bad:
        record, (position, reason) = min(bad.reasons.items())
        offset = position - int(block.spans.start[record])
        raise TFRecordError(f"record {block.offset + record} of a partition", offset, reason) from None
    return zip(*map(_python, arrays), strict=True) if arrays else repeat((), len(block.spans))


def _python(array: pa.Array) -> list[Any]:
    """Return the values of rows: binary values are bytearrays, as in 2.x."""
    nested = pa.types.is_list(array.type)
    values: list[Any] = array.to_pylist()
    if pa.types.is_binary(array.type.value_type if nested else array.type):
        return [map_values(bytearray, value, nested) for value in values]
    return values
