"""DataFrames to TFRecord files and back, as TensorFlowOnSpark 2.x had it, but without a jar."""

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
from tensorflowonspark.tfrecords.decode import decode
from tensorflowonspark.tfrecords.encode import encode
from tensorflowonspark.tfrecords.examples import Records
from tensorflowonspark.tfrecords.framing import BLOCK_BYTES, Block
from tensorflowonspark.tfrecords.functions import read_tfrecord, write_tfrecord
from tensorflowonspark.tfrecords.infer import Seen, columns_of, merged, seen_in_block
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.wire import PADDING_BYTES, BadRecords, Spans
from tensorflowonspark.tfrecords.writing import Output

from ._old import show_new_way
from ._program import session_of
from ._values import arrow_types, as_batch, each_of

if TYPE_CHECKING:
    import tensorflow as tf
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType

__all__ = ["fromTFExample", "infer_schema", "isLoadedDF", "loadTFRecords", "saveAsTFRecords", "toTFExample"]

_FIRST_ROWS, _MOST_ROWS, _PIECE_BYTES = 16, 4096, 16 << 20  # encoded at once: first, at the most, and about so much

_Pairs = list[tuple[bytearray, None]]

_loaded: "WeakSet[DataFrame]" = WeakSet()


def saveAsTFRecords(df: "DataFrame", output_dir: str) -> None:
    """Write a DataFrame as TFRecord files of ``tf.train.Example``, one for each partition.

    Parameters
    ----------
    df : DataFrame
        Whole numbers, booleans, dates and times become int64 (days, or microseconds), floats become float, texts, bytes
        and decimals bytes; arrays of them have several values. A null has no feature.
    output_dir : str
        A directory that isn't there yet; without a scheme it is one of Hadoop's default file system.

    Raises
    ------
    SpecError
        If it is there, or a column can't be written.
    """
    show_new_way("dfutil.saveAsTFRecords", "tensorflowonspark.write_tfrecord(df, path)")
    storage.use_session(df.sparkSession)
    path = _absolute(output_dir)
    if Output(path, Options()).exists():
        raise SpecError(
            f"there is something at {path}: take another directory, or "
            "tensorflowonspark.write_tfrecord(df, path, mode='overwrite')"
        )
    write_tfrecord(df, path)


def loadTFRecords(sc: "SparkContext", input_dir: str, binary_features: Sequence[str] = ()) -> "DataFrame":
    """Return the records of TFRecord files as a DataFrame.

    Parameters
    ----------
    sc : SparkContext
        The application's.
    input_dir : str
        A directory, a file or a wildcard, or several of them with commas between; without a scheme it is on Hadoop's
        default file system.
    binary_features : sequence of str
        Features that are bytes, and no text, whatever they look like.

    Returns
    -------
    DataFrame
        Columns in the order of their names, whose types all records have told (one Spark job): long, double, string,
        or binary; arrays of them where any record has several values. A record without a feature has a null.

    Raises
    ------
    SpecError
        If there are no records, or they contradict each other: ``tensorflowonspark.read_tfrecord`` takes a schema.
    """
    show_new_way("dfutil.loadTFRecords", "tensorflowonspark.read_tfrecord(spark, path)")
    spark = session_of(sc)
    storage.use_session(spark)
    paths = [_absolute(each) for each in input_dir.split(",")]
    frame = read_tfrecord(spark, paths, floatType="double", binaryFeatures=binary_features, sampleRecords=0)
    _loaded.add(frame)
    return frame


def isLoadedDF(df: "DataFrame") -> bool:
    """Return whether `loadTFRecords` made a DataFrame: this very one, and not one that came of it."""
    return df in _loaded


def _absolute(path: str) -> str:
    return storage.absolute_path(path, str(Path.cwd()))


def toTFExample(dtypes: Sequence[tuple[str, str]]) -> Callable[[Iterable[Sequence[Any]]], _Pairs]:
    r"""Return a function for ``df.rdd.mapPartitions`` that makes serialised ``tf.train.Example`` messages of rows.

    Parameters
    ----------
    dtypes : sequence of (str, str)
        Names and types of the columns: ``df.dtypes``. What they become is said at `saveAsTFRecords`.

    Returns
    -------
    callable
        From the rows of a partition to a list of ``(bytearray, None)``: key and value as Hadoop's output format for
        TFRecord files takes them.

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
            count = max(1, min(_MOST_ROWS, len(piece) * _PIECE_BYTES // max(1, messages.nbytes)))
        return pairs

    return encoded


def fromTFExample(iter: Iterable[tuple[bytes, Any]], binary_features: Sequence[str] = ()) -> "list[Row]":  # noqa: A002
    r"""Return rows for the serialised ``tf.train.Example`` messages of a partition.

    Parameters
    ----------
    iter : iterable of (bytes, anything)
        The messages; ``bytearray`` will do.
    binary_features : sequence of str
        Features that are bytes, and no text, whatever they look like.

    Returns
    -------
    list of Row
        One for each message, all with the fields that any of them has, in the order of their names. Types are as in
        `loadTFRecords`, told from all of these messages.

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
    """Return the columns that `loadTFRecords` would give a file of this one record.

    Parameters
    ----------
    example : tf.train.Example
        The record.
    binary_features : sequence of str
        Features that are bytes, and no text, whatever they look like.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    options = _reading(binary_features)
    (block,) = _blocks([example.SerializeToString()])
    return from_arrow_schema(pa.schema(columns_of(seen_in_block(block, options), options)))


def _reading(binary_features: Sequence[str]) -> Options:
    return Options.of({"floatType": "double", "binaryFeatures": binary_features})


def _blocks(messages: Iterable[bytes]) -> Iterator[Block]:
    """Yield messages put together as they would be if they had been read from a file."""
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
    """Return messages as a block; its offset is how many came before, not how many bytes."""
    data = np.frombuffer(b"".join([*messages, bytes(PADDING_BYTES)]), np.uint8)
    bounds = np.cumsum([0, *map(len, messages)])
    spans = Spans(bounds[:-1], bounds[1:], np.arange(len(messages)))
    return Block(offset, data, spans, np.empty(0, np.int64))


def _rows(block: Block, columns: list[pa.Field]) -> Iterable[tuple[Any, ...]]:
    try:
        arrays = decode(Records(block.data, block.spans), columns, sequences=False)
    except BadRecords as bad:
        record, (at, reason) = min(bad.reasons.items())
        place = at - int(block.spans.start[record])
        raise TFRecordError(f"record {block.offset + record} of a partition", place, reason) from None
    return zip(*map(_python, arrays), strict=True) if arrays else repeat((), len(block.spans))


def _python(array: pa.Array) -> list[Any]:
    """Return values as rows have them: bytes are a bytearray, as they were in 2.x."""
    nested = pa.types.is_list(array.type)
    values: list[Any] = array.to_pylist()
    if pa.types.is_binary(array.type.value_type if nested else array.type):
        return [each_of(bytearray, value, nested) for value in values]
    return values
