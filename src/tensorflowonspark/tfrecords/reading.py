"""Reading of records as Arrow batches, in Spark's tasks and in nodes."""

import io
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from tensorflowonspark import storage
from tensorflowonspark.columns import lists_as_vectors, spread
from tensorflowonspark.columns.layout import is_binary, is_vector
from tensorflowonspark.errors import TFRecordError
from tensorflowonspark.storage.partition_columns import constant
from tensorflowonspark.tfrecords.checksums import HEADER_BYTES
from tensorflowonspark.tfrecords.decode import decode
from tensorflowonspark.tfrecords.examples import Encoded
from tensorflowonspark.tfrecords.framing import (
    BLOCK_BYTES,
    Block,
    BrokenFile,
    blocks,
    compression_of,
    decompressed,
    first_header,
    foreign_compression,
)
from tensorflowonspark.tfrecords.options import Compression, Mode, Options, RecordType
from tensorflowonspark.tfrecords.splits import RecordSplit
from tensorflowonspark.tfrecords.wire_format import BadRecords, UnfitRecords, gather

BYTES_COLUMN = "byteArray"
_ADVICE = (
    'mode="DROPMALFORMED" leaves out what can\'t be read, mode="PERMISSIVE" gives rows of nulls for it and the reason '
    "in a column _corrupt_record string"
)
_OF_SCHEMA = (
    "give a schema with the type that the values have; without a schema it is inferred from the first records. If only "
    f"some records are wrong, {_ADVICE}"
)
_REPACK = "decompress it, or compress it by gzip"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Damaged:
    """The rest of a file, which can't be read."""

    offset: int  # where it begins, in bytes
    reason: str


def records_of(split: RecordSplit, options: Options) -> Iterator[Block | Damaged]:
    """Yield the records of a split, and last a `Damaged` if the file can't be read to the end of the split.

    Raises TFRecordError if the file has a compression that TFRecord files do not have, and FileNotFoundError if it is
    gone, unless the option `ignore_missing_files` is set.
    """
    files, path = storage.file_system(split.file.path)
    try:
        file = files.open(path, "rb")
    except FileNotFoundError:
        if not options.ignore_missing_files:
            raise
        _log.warning("%s is gone since it was listed, and was left out", split.file.path)
        return
    with file:
        if split.file.size <= BLOCK_BYTES:
            file = io.BytesIO(file.read(split.file.size))  # in one request to a store
        try:
            yield from _blocks(file, split, options.max_record_bytes)
        except BrokenFile as error:
            yield Damaged(error.offset, str(error))


def _blocks(file: BinaryIO, split: RecordSplit, longest: int) -> Iterator[Block]:
    head = file.read(HEADER_BYTES)
    if other := foreign_compression(head, split.file.path):
        raise TFRecordError(
            split.file.path, 0, f"it is compressed by {other}, and a TFRecord file by gzip or zlib, or not", _REPACK
        )
    compression = compression_of(head)
    if compression is not Compression.NONE:
        if split.begin == 0:  # decompression starts at the beginning, so the first split is the whole file
            file.seek(0)
            yield from blocks(decompressed(file, compression), longest=longest)
        return
    begin = first_header(file, split.begin, split.end) if split.begin else 0
    file.seek(begin)
    yield from blocks(file, begin, split.end, longest=longest)


def read(splits: Iterable[RecordSplit], columns: Sequence[pa.Field], options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some splits, those of one block of one file at a time.

    The columns are features, partition columns of the files, and the column of reasons. Raises TFRecordError if a
    record can't be read, and the mode is `Mode.FAILFAST`.
    """
    for split in splits:
        reader = _Reader(split, list(columns), options)
        for block in records_of(split, options):
            if (batch := reader.rows(block)) is not None:
                yield batch
        reader.log_dropped()


def count(split: RecordSplit, columns: Sequence[pa.Field], options: Options) -> int:
    """Return the number of rows that `read` yields for a split; records are decoded only if some are to be left out.

    Raises what `read` raises, except for records whose data are wrong.
    """
    if options.mode is Mode.DROPMALFORMED or options.ignore_corrupt_files:
        return sum(batch.num_rows for batch in read([split], columns, options))
    rows = 0
    for block in records_of(split, options):
        if not isinstance(block, Damaged):
            rows += len(block.spans)
        elif options.mode is Mode.FAILFAST:
            raise TFRecordError(split.file.path, block.offset, block.reason, _ADVICE)
        else:
            rows += 1  # that of nulls, for the rest of the file
    return rows


class _Reader:
    """Converts the records of one file to rows."""

    def __init__(self, split: RecordSplit, columns: list[pa.Field], options: Options) -> None:
        self._file = split.file.path
        self._options = options
        self._schema = pa.schema(columns)
        alike = {} if options.case_sensitive else {each.name.lower(): each.name for each in columns}
        self._constants = {alike.get(name.lower(), name): value for name, value in split.file.values}
        special = {*self._constants, options.column_name_of_corrupt_record}
        self._features = [column for column in columns if column.name not in special]
        self._dropped = 0

    def rows(self, block: Block | Damaged) -> pa.RecordBatch | None:
        """Return the rows of a block, or None for the rest of a file that is left out."""
        if isinstance(block, Damaged):
            return self._rest(block)
        if block.wrong.size and self._options.ignore_corrupt_files:
            self._dropped += block.wrong.size
            block = block.without_wrong()
        data, spans = block.data, block.spans
        bad: dict[int, str] = {}
        if block.wrong.size:
            what = "its data does not have its checksum"
            self._refuse(bad, block, {each: (int(spans.start[each]), what) for each in block.wrong.tolist()})
        while True:
            good = np.setdiff1d(spans.record, list(bad)) if bad else spans.record
            try:
                arrays = self._arrays(Encoded(data, spans.take(good) if bad else spans))
                break
            except BadRecords as error:
                self._refuse(bad, block, error.reasons, _OF_SCHEMA if isinstance(error, UnfitRecords) else _ADVICE)
        if not bad or self._options.mode is Mode.DROPMALFORMED:
            return self._batch(arrays, len(good), None)
        arrays = [spread(array, good, len(spans)) for array in arrays]
        return self._batch(arrays, len(spans), self._reasons(block, bad))

    def log_dropped(self) -> None:
        """Log the number of records that could not be read."""
        if self._dropped:
            _log.warning("%s: %d records could not be read and were left out", self._file, self._dropped)

    def _arrays(self, records: Encoded) -> list[pa.Array]:
        if self._options.record_type is RecordType.BYTE_ARRAY:
            whole = gather(records.data, records.spans.start, records.spans.end)
            return [whole.cast(column.type) for column in self._features]
        plain = [
            pa.field(each.name, each.type.field("values").type, each.nullable) if is_vector(each.type) else each
            for each in self._features
        ]
        sequences = self._options.record_type is RecordType.SEQUENCE_EXAMPLE
        found = decode(records, plain, sequences, self._options.case_sensitive)
        return [
            lists_as_vectors(array, column.type) if is_vector(column.type) else array
            for array, column in zip(found, self._features, strict=True)
        ]

    def _refuse(
        self, bad: dict[int, str], block: Block, reasons: dict[int, tuple[int, str]], advice: str = _ADVICE
    ) -> None:
        if self._options.mode is Mode.FAILFAST:
            at, reason = min(reasons.values())
            raise TFRecordError(self._file, block.offset + at, reason, advice)
        self._dropped += len(reasons)
        for record, (at, reason) in reasons.items():
            bad[record] = f"{self._file}, byte {block.offset + at}: {reason}"

    def _rest(self, damaged: Damaged) -> pa.RecordBatch | None:
        """Return one row for the rest of a file, whose number of records is unknown, or None."""
        ignored = self._options.ignore_corrupt_files
        if self._options.mode is Mode.FAILFAST and not ignored:
            raise TFRecordError(self._file, damaged.offset, damaged.reason, _ADVICE)
        self._dropped += 1
        if self._options.mode is Mode.DROPMALFORMED or ignored:
            return None
        reason = f"{self._file}, byte {damaged.offset}: {damaged.reason}; the rest of the file is lost"
        return self._batch([pa.nulls(1, each.type) for each in self._features], 1, pa.array([reason]))

    def _reasons(self, block: Block, bad: dict[int, str]) -> pa.Array:
        """Return the column of reasons, which holds the records themselves if it is binary."""
        name = self._options.column_name_of_corrupt_record
        if name in self._schema.names and is_binary(self._schema.field(name).type):
            spans = block.spans
            return pa.array(
                [
                    block.data[spans.start[row] : spans.end[row]].tobytes() if row in bad else None
                    for row in range(len(spans))
                ]
            )
        return pa.array([bad.get(row) for row in range(len(block.spans))])

    def _batch(self, arrays: list[pa.Array], rows: int, reasons: pa.Array | None) -> pa.RecordBatch:
        found = dict(zip((each.name for each in self._features), arrays, strict=True))
        for column in self._schema:
            if column.name in self._constants:
                found[column.name] = constant(self._constants[column.name], column.type, rows)
            elif column.name == self._options.column_name_of_corrupt_record and column.name not in found:
                found[column.name] = pa.nulls(rows, column.type) if reasons is None else reasons.cast(column.type)
        return pa.record_batch([found[name] for name in self._schema.names], schema=self._schema)
