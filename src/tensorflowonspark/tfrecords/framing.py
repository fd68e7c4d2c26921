"""TFRecord files: the frame around each record, its checksums, and compression.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes, its data, and the masked CRC-32C
of the data. Source: ``tensorflow/core/lib/io/record_writer.h``.
"""

import io
import itertools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.tfrecords.options import Compression
from tensorflowonspark.tfrecords.wire import PADDING_BYTES, Ints, Spans, within

__all__ = [
    "BLOCK_BYTES",
    "HEADER_BYTES",
    "Block",
    "BrokenFile",
    "blocks",
    "compression_of",
    "compressor",
    "decompressed",
    "first_header",
    "framed",
    "is_header",
]

_READ_BYTES = 1 << 20
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


HEADER_BYTES = 12
FOOTER_BYTES = 4
BLOCK_BYTES = 4 << 20  # per read: fits a processor's cache, and outweighs the overhead of numpy's calls
_MASK_ADDED = np.uint32(0xA282EAD8)
_LOOK_BYTES = 1 << 14  # the first read of a search for a record, which is usually near
# A chain of this length is neither a coincidence nor a short file inside a record.
_CHAIN_RECORDS, _CHAIN_BYTES = 1000, 8 << 20
_length_at = struct.Struct("<Q").unpack_from


class BrokenFile(Exception):
    """A file can't be read beyond some offset, since the start of its next record is unknown.

    Attributes
    ----------
    offset : int
        The offset, in bytes of the decompressed file.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


@dataclass(frozen=True)
class Block:
    """Some whole records of a file.

    Attributes
    ----------
    offset : int
        The offset of the first byte of `data` in the decompressed file.
    data : array of uint8
        The bytes, followed by padding.
    spans : Spans
        The records in `data`, without their frames.
    wrong : array of int
        The numbers of the records whose data do not match their checksum.
    """

    offset: int
    data: npt.NDArray[np.uint8]
    spans: Spans
    wrong: Ints


def blocks(file: BinaryIO, begin: int = 0, end: int | None = None, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield the records of a file whose frames begin in ``[begin, end)``.

    Parameters
    ----------
    file : file object
        The decompressed file, positioned at `begin`, where a record begins.
    begin, end : int
        In bytes; by default the whole file.
    size : int
        The number of bytes to read at once. A longer record is read whole.

    Yields
    ------
    Block
        Whole records.

    Raises
    ------
    BrokenFile
        After the records that can be read, if the file ends within a record or a length does not match its checksum.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO(framed(pa.array([b"one", b"two"])))
    >>> [bytes(block.data[s:e]) for block in blocks(file) for s, e in zip(block.spans.start, block.spans.end)]
    [b'one', b'two']
    """
    rest, offset, wanted = b"", begin, size
    while end is None or offset < end:
        read = list(_pieces(file, wanted))
        ended = sum(map(len, read)) < wanted
        data = b"".join([rest, *read, bytes(PADDING_BYTES)])
        length = len(data) - PADDING_BYTES
        frames, behind = _walk(data, length, length if end is None else min(length, end - offset))
        partial = [behind] if behind + HEADER_BYTES <= length and (end is None or offset + behind < end) else []
        good = headers_hold(np.frombuffer(data, np.uint8), np.array(frames + partial, np.int64))
        whole = len(frames) if good.all() else int(np.argmin(good))
        if whole and frames:
            yield _block(data, offset, np.array(frames[:whole], np.int64))
        if not good.all():
            raise BrokenFile(offset + [*frames, *partial][whole], "the length of a record does not have its checksum")
        if ended:
            if behind < length and (end is None or offset + behind < end):
                raise BrokenFile(offset + behind, _cut(data, behind, length))
            return
        rest, offset = data[behind:length], offset + behind
        wanted = max(size, _frame_bytes(rest, 0) - len(rest) if partial else 0)


def _pieces(file: BinaryIO, wanted: int) -> Iterator[bytes]:
    """Yield the next bytes of a file in pieces, so that a wrong length does not allocate memory for itself."""
    while wanted > 0 and (piece := file.read(min(wanted, 16 * BLOCK_BYTES))):
        wanted -= len(piece)
        yield piece


def _frame_bytes(data: bytes, at: int) -> int:
    return int(_length_at(data, at)[0]) + HEADER_BYTES + FOOTER_BYTES


def _walk(data: bytes, length: int, limit: int) -> tuple[list[int], int]:
    """Return the positions of the whole frames, and of the one after them."""
    # Each length leads to the next frame: the only loop over records, with 0.15 microseconds for each.
    frames: list[int] = []
    at = 0
    while at < limit and at + HEADER_BYTES <= length:
        behind = at + _length_at(data, at)[0] + HEADER_BYTES + FOOTER_BYTES
        if behind > length:
            break
        frames.append(at)
        at = behind
    return frames, at


def _block(data: bytes, offset: int, frames: Ints) -> Block:
    array = np.frombuffer(data, np.uint8)
    start = frames + HEADER_BYTES
    end = start + _words(array, frames, "<u8").astype(np.int64)
    crc = google_crc32c.value
    found = [crc(data[begin:stop]) for begin, stop in zip(start.tolist(), end.tolist(), strict=True)]
    wrong = np.flatnonzero(_masked(np.array(found, np.uint32)) != _words(array, end, "<u4"))
    return Block(offset, array, Spans(start, end, np.arange(len(start))), wrong)


def _cut(data: bytes, at: int, length: int) -> str:
    if length - at < HEADER_BYTES:
        return f"it ends within the {HEADER_BYTES} bytes before a record: {length - at} of them are there"
    there = length - at - HEADER_BYTES
    return f"it ends within a record of {_length_at(data, at)[0]:,} bytes: {there:,} of them are there"


def _words(array: npt.NDArray[np.uint8], at: Ints, kind: str) -> npt.NDArray[np.unsignedinteger]:
    """Return the numbers at some positions."""
    words: npt.NDArray[np.unsignedinteger] = array[at[:, None] + np.arange(np.dtype(kind).itemsize)].view(kind).ravel()
    return words


def _masked(crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    masked: npt.NDArray[np.uint32] = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK_ADDED
    return masked


# A checksum is linear: that of 8 bytes is the exclusive or of the contribution of each byte at its position.
_OF_ZEROS = google_crc32c.value(bytes(8))
_CONTRIBUTIONS = np.array(
    [
        [google_crc32c.value(bytes(place) + bytes([byte]) + bytes(7 - place)) ^ _OF_ZEROS for byte in range(256)]
        for place in range(8)
    ],
    np.uint32,
)


def _length_crc(lengths: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the masked checksums of lengths, rows of 8 bytes."""
    crc = np.full(len(lengths), _OF_ZEROS, np.uint32)
    for place in range(8):
        crc ^= _CONTRIBUTIONS[place][lengths[:, place]]
    return _masked(crc)


def headers_hold(array: npt.NDArray[np.uint8], at: Ints) -> npt.NDArray[np.bool_]:
    """Return whether the lengths at some positions of a buffer match their checksums."""
    hold: npt.NDArray[np.bool_] = _length_crc(array[at[:, None] + np.arange(8)]) == _words(array, at + 8, "<u4")
    return hold


def is_header(data: bytes) -> bool:
    """Return whether the bytes begin with a length and its checksum, as a record does."""
    whole = len(data) >= HEADER_BYTES
    return whole and bool(headers_hold(np.frombuffer(data, np.uint8), np.zeros(1, np.int64)).all())


def first_header(file: BinaryIO, begin: int, end: int) -> int:
    """Return the position of the first record's frame in a part of a file, or `end` if no frame begins in it.

    A frame is recognized by a length that matches its checksum, followed by further ones: each matches by chance once
    in 2**32 positions.

    Parameters
    ----------
    file : file object
        A seekable file.
    begin, end : int
        The part, in bytes.

    Returns
    -------
    int
        The position, in bytes.
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
        for place in places[headers_hold(array, places)].tolist():
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
        at += _frame_bytes(header, 0)
    return True


def framed(records: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of a file of records.

    Parameters
    ----------
    records : pa.Array
        The records, of type binary, without nulls.

    Returns
    -------
    array of uint8
        The framed records.
    """
    data, bounds = within(records)
    lengths = np.diff(bounds).astype("<u8").view(np.uint8).reshape(-1, 8)
    headers = np.concatenate([lengths, _length_crc(lengths).astype("<u4")[:, None].view(np.uint8)], axis=1)
    raw, crc = data.tobytes(), google_crc32c.value
    found = [crc(raw[begin:end]) for begin, end in itertools.pairwise(bounds.tolist())]
    footers = _masked(np.array(found, np.uint32)).astype("<u4").view(np.uint8).reshape(-1, 4)
    parts = [_rows(headers), records, _rows(footers)]
    joined, _ = within(pc.binary_join_element_wise(*parts, pa.scalar(b"", records.type)))
    return joined


def _rows(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a matrix of bytes as the values of a binary array."""
    offsets = np.arange(0, matrix.size + 1, matrix.shape[1], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(matrix), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    )
