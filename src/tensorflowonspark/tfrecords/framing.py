"""TFRecord files: the frame around each record, its checksums, and compression.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes, its data, and the masked CRC-32C
of the data. Source: ``tensorflow/core/lib/io/record_writer.h``.
"""

import io
import itertools
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns.layout import bytes_of
from tensorflowonspark.tfrecords.checksums import (
    FOOTER_BYTES,
    HEADER_BYTES,
    length_crc,
    masked,
    masked_crc,
    wrong_data,
)
from tensorflowonspark.tfrecords.options import MAX_RECORD_BYTES, Compression
from tensorflowonspark.tfrecords.wire_format import PADDING_BYTES, Bytes, Ints, Spans, numbers_at

_READ_BYTES = 1 << 20  # of a compressed file at once, and of what it contains
_WINDOW_BITS = {Compression.GZIP: 31, Compression.ZLIB: 15}  # zlib's parameter for the two formats


def compression_of(head: bytes) -> Compression:
    """Return the compression of a file by its first bytes, at least 12 unless the file is shorter.

    Examples
    --------
    >>> compression_of(zlib.compress(b"anything")).value
    'zlib'
    """
    if is_header(head):
        return Compression.NONE
    if head[:2] == b"\x1f\x8b":
        return Compression.GZIP
    # Deflate (8), a window of at most 32 kB, and a header that is a multiple of 31 (RFC 1950).
    if len(head) > 1 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0:  # noqa: PLR2004
        return Compression.ZLIB
    return Compression.NONE


_FOREIGN = {  # what files of other compressions begin with; Hadoop's have nothing in common but their names
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"\x04\x22\x4d\x18": "lz4",
}
_FOREIGN_NAMES = {".bz2": "bzip2", ".xz": "xz", ".zst": "zstd", ".zstd": "zstd", ".snappy": "snappy", ".lz4": "lz4"}


def foreign_compression(head: bytes, path: str) -> str | None:
    """Return the name of a compression that TFRecord files do not have, by a file's first bytes and its name.

    Examples
    --------
    >>> foreign_compression(b"BZh91AY&SY..", "a.tfrecord"), foreign_compression(b"0" * 12, "a.tfrecord")
    ('bzip2', None)
    """
    if is_header(head) or compression_of(head) is not Compression.NONE:
        return None
    found = next((name for start, name in _FOREIGN.items() if head.startswith(start)), None)
    return found or _FOREIGN_NAMES.get(PurePosixPath(path).suffix.lower())


def decompressed(file: BinaryIO, compression: Compression) -> BinaryIO:
    """Return a file object that reads the decompressed data of a file."""
    return file if compression is Compression.NONE else io.BufferedReader(_Inflated(file, compression), _READ_BYTES)


class _Inflated(io.RawIOBase):
    """The decompressed data of a file, which may hold several streams, as the output of ``cat a.gz b.gz`` does."""

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self._file = file
        self._bits = _WINDOW_BITS[compression]
        self._inflate = zlib.decompressobj(self._bits)
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        while True:
            data = self._inflate.unconsumed_tail or self._inflate.unused_data or self._file.read(_READ_BYTES)
            if self._inflate.eof:
                if not data:
                    return 0
                self._inflate = zlib.decompressobj(self._bits)
            try:
                piece = self._inflate.decompress(data, len(buffer))
            except zlib.error as error:
                raise BrokenFile(self._given, f"its compressed data is damaged ({error})") from None
            if piece:
                self._given += len(piece)
                buffer[: len(piece)] = piece
                return len(piece)
            if not data and not self._inflate.eof:
                raise BrokenFile(self._given, "it ends within its compressed data")


def compressor(compression: Compression) -> "zlib._Compress | None":
    """Return a compressor, or None for no compression."""
    return None if compression is Compression.NONE else zlib.compressobj(wbits=_WINDOW_BITS[compression])


BLOCK_BYTES = 2 << 20  # per read: fits a processor's cache, and outweighs the overhead of numpy's calls
_FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_PIECE_BYTES = 32 * BLOCK_BYTES  # of memory that is allocated for a length that may be wrong
_RUN_RECORDS, _LONGEST_RUN = 16, 1024  # of one length: from how many on, and how many at once
_LOOK_BYTES = 1 << 14  # the first read of a search for a record, which is usually near
# A chain of this length is neither a coincidence nor a short file inside a record.
_CHAIN_RECORDS, _CHAIN_BYTES = 1000, 8 << 20
_length_at = struct.Struct("<Q").unpack_from


class BrokenFile(Exception):
    """A file can't be read beyond some offset, in bytes when decompressed: where its next record begins is unknown."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


@dataclass(frozen=True)
class Block:
    """Some whole records of a file."""

    offset: int  # of the first byte of `data` in the decompressed file
    data: npt.NDArray[np.uint8]  # followed by padding
    spans: Spans  # the records in `data`, without their frames
    wrong: Ints  # the numbers of the records whose data do not match their checksum

    def without_wrong(self) -> "Block":
        """Return the block without these records."""
        good = self.spans.take(np.setdiff1d(self.spans.record, self.wrong))
        return Block(self.offset, self.data, Spans(good.start, good.end, np.arange(len(good))), self.wrong[:0])


def blocks(
    file: BinaryIO, begin: int = 0, end: int | None = None, size: int = BLOCK_BYTES, longest: int = MAX_RECORD_BYTES
) -> Iterator[Block]:
    """Yield the records of a file whose frames begin in ``[begin, end)``, in bytes; by default of the whole file.

    The file is decompressed, and positioned at `begin`, where a record begins. So many bytes as `size` are read at
    once; a longer record is read whole, unless it is longer than `longest`: some bytes of compressed data can stand for
    any number. Raises BrokenFile after the records that can be read, if the file ends within a record, or a length does
    not match its checksum or exceeds `longest`.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO(framed(pa.array([b"one", b"two"])))
    >>> [bytes(block.data[s:e]) for block in blocks(file) for s, e in zip(block.spans.start, block.spans.end)]
    [b'one', b'two']
    """
    rest, offset, wanted = np.empty(0, np.uint8), begin, size
    while end is None or offset < end:
        data, ended = _read(file, rest, wanted)
        length = len(data) - PADDING_BYTES
        frames, behind = _walk(data, length, length if end is None else min(length, end - offset))
        partial = [behind] if behind + HEADER_BYTES <= length and (end is None or offset + behind < end) else []
        hold, lengths = headers_hold(data, np.append(frames, np.array(partial, np.int64)))
        good = hold & (lengths <= longest)
        whole = len(frames) if good.all() else int(np.argmin(good))
        if whole and len(frames):
            yield _block(data, offset, frames[:whole])
        if not good.all():
            wrong, number = [*frames[whole : whole + 1].tolist(), *partial][0], int(np.argmin(good))
            raise BrokenFile(
                offset + wrong,
                f"a record has {lengths[number]:,} bytes, and the option maxRecordBytes allows {longest:,}"
                if hold[number]
                else "the length of a record does not have its checksum",
            )
        if ended:
            if behind < length and (end is None or offset + behind < end):
                raise BrokenFile(offset + behind, _cut(data, behind, length))
            return
        rest, offset = data[behind:length], offset + behind
        wanted = max(size, _frame_bytes(rest.data) - len(rest) if partial else 0)


def _read(file: BinaryIO, rest: Bytes, wanted: int) -> tuple[Bytes, bool]:
    """Return `rest`, the next bytes of a file and the padding; and whether the file has ended."""
    if wanted <= _PIECE_BYTES and hasattr(file, "readinto"):
        with suppress(NotImplementedError):  # hdfs_native has the method, and no more
            return _read_into(file, rest, wanted)
    pieces = [np.frombuffer(piece, np.uint8) for piece in _pieces(file, wanted)]
    data = np.concatenate([rest, *pieces, np.zeros(PADDING_BYTES, np.uint8)])
    return data, sum(map(len, pieces)) < wanted


def _read_into(file: Any, rest: Bytes, wanted: int) -> tuple[Bytes, bool]:
    data = np.empty(len(rest) + wanted + PADDING_BYTES, np.uint8)
    data[: len(rest)] = rest
    at, full = len(rest), len(rest) + wanted
    while at < full and (count := file.readinto(data.data[at:full])):
        at += count
    data[at : at + PADDING_BYTES] = 0
    return data[: at + PADDING_BYTES], at < full


def _pieces(file: BinaryIO, wanted: int) -> Iterator[bytes]:
    """Yield the next bytes of a file in pieces, so that a wrong length does not allocate memory for itself."""
    while wanted > 0 and (piece := file.read(min(wanted, _PIECE_BYTES))):
        wanted -= len(piece)
        yield piece


def _frame_bytes(data: "bytes | memoryview") -> int:
    return int(_length_at(data, 0)[0]) + _FRAME_BYTES


def _walk(data: Bytes, length: int, limit: int) -> tuple[Ints, int]:
    """Return the positions of the whole frames, and of the one after them."""
    runs: list[Ints] = []
    frames: list[int] = []
    view, add, length_at = data.data, frames.append, _length_at
    at, last = 0, min(limit - 1, length - HEADER_BYTES)
    behind = 0
    while at <= last and behind <= length:
        # Each length leads to the next frame: the only loop over records, with 0.1 microseconds for each.
        for _ in range(_RUN_RECORDS):
            if at > last or (behind := at + length_at(view, at)[0] + _FRAME_BYTES) > length:
                break
            add(at)
            at = behind
        else:
            size = at - frames[-1]
            if at - frames[-_RUN_RECORDS] == _RUN_RECORDS * size:
                run = _run(data, at, size, min(last, length - size))
                runs += [np.array(frames), run]
                frames.clear()
                at += len(run) * size
    return np.concatenate([*runs, np.array(frames, np.int64)]), at


def _run(data: Bytes, at: int, size: int, last: int) -> Ints:
    """Return the positions of the next frames, at most up to `last`, if they have this size."""
    count = min(max(0, last - at + size) // size, _LONGEST_RUN)
    lengths = np.ndarray((count,), "<u8", data, at, (size,))
    same = lengths == size - _FRAME_BYTES
    return at + size * np.arange(count if same.all() else int(np.argmin(same)))


def _block(data: Bytes, offset: int, frames: Ints) -> Block:
    start = frames + HEADER_BYTES
    end = start + numbers_at(data, frames, "<u8").astype(np.int64)
    return Block(offset, data, Spans(start, end, np.arange(len(start))), wrong_data(data, start, end))


def _cut(data: Bytes, at: int, length: int) -> str:
    if length - at < HEADER_BYTES:
        return f"it ends within the {HEADER_BYTES} bytes before a record: {length - at} of them are there"
    there = length - at - HEADER_BYTES
    return f"it ends within a record of {_length_at(data.data, at)[0]:,} bytes: {there:,} of them are there"


def headers_hold(array: Bytes, at: Ints) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
    """Return whether the lengths at some positions of a buffer match their checksums, and the lengths."""
    lengths = numbers_at(array, at, "<u8")
    return length_crc(lengths) == numbers_at(array, at + 8, "<u4"), lengths


def is_header(data: bytes) -> bool:
    """Return whether the bytes begin with a length and its checksum, as a record does."""
    return len(data) >= HEADER_BYTES and masked_crc(data[:8]) == int.from_bytes(data[8:HEADER_BYTES], "little")


def first_header(file: BinaryIO, begin: int, end: int) -> int:
    """Return the position of the first record's frame in a part of a file, or `end` if no frame begins in it.

    A frame is recognized by a length that matches its checksum, followed by further ones: each matches by chance once
    in 2**32 positions.
    """
    at, size = begin, _LOOK_BYTES
    while at < end:
        file.seek(at)
        data = b"".join(_pieces(file, min(size, end - at) + HEADER_BYTES))
        array = np.frombuffer(data, np.uint8)
        # No record is longer than 4 GiB, which leaves few positions to check.
        high = (
            array[4:-8].astype(bool) | array[5:-7] | array[6:-6] | array[7:-5]
            if len(data) >= HEADER_BYTES
            else array[:0]
        )
        places = np.flatnonzero(~high.astype(bool))
        for place in places[headers_hold(array, places)[0]].tolist():
            if _chain_holds(file, at + place, end):
                return int(at + place)
        at, size = at + size, min(2 * size, BLOCK_BYTES)
    return end


def _chain_holds(file: BinaryIO, begin: int, end: int) -> bool:
    """Return whether frame follows frame from a position on."""
    at, start, data = begin, begin, b""
    for _ in range(_CHAIN_RECORDS):
        if at >= min(end, begin + _CHAIN_BYTES):
            break
        if at + HEADER_BYTES > start + len(data):
            file.seek(at)
            start, data = at, file.read(_LOOK_BYTES)
        header = data[at - start : at - start + HEADER_BYTES]
        if not header:
            break  # the end of the file
        if not is_header(header):
            return False
        at += _frame_bytes(header)
    return True


def framed(records: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of a file of records, which are binary and without nulls."""
    data, bounds = bytes_of(records)
    lengths = np.diff(bounds).astype("<u8")
    of_lengths = length_crc(lengths).astype("<u4")
    headers = np.concatenate([each.view(np.uint8).reshape(-1, each.itemsize) for each in (lengths, of_lengths)], axis=1)
    raw, crc = data.tobytes(), google_crc32c.value
    found = [crc(raw[begin:end]) for begin, end in itertools.pairwise(bounds.tolist())]
    footers = masked(np.array(found, np.uint32)).astype("<u4").view(np.uint8).reshape(-1, 4)
    parts = [_rows(headers), records, _rows(footers)]
    joined, _ = bytes_of(pc.binary_join_element_wise(*parts, pa.scalar(b"", records.type)))
    return joined


def _rows(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a matrix of bytes as the values of a binary array."""
    offsets = np.arange(0, matrix.size + 1, matrix.shape[1], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(matrix), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    )
