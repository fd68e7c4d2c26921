"""Compressed files of records: GZIP and ZLIB, told by their first bytes."""

import io
import zlib
from typing import BinaryIO

from tensorflowonspark.tfrecords.framing import BrokenFile, is_header
from tensorflowonspark.tfrecords.options import Compression

__all__ = ["compression_of", "compressor", "decompressed"]

_READ_BYTES = 1 << 20
_WINDOW_BITS = {Compression.GZIP: 31, Compression.ZLIB: 15}  # by which zlib tells its two frames apart


def compression_of(head: bytes) -> Compression:
    """Return how a file is compressed that begins with these bytes, at least 12 unless it is shorter.

    Examples
    --------
    >>> compression_of(zlib.compress(b"anything")).value
    'zlib'
    """
    if is_header(head):
        return Compression.NONE
    if head[:2] == b"\x1f\x8b":
        return Compression.GZIP
    # Deflate (8), with a window of at most 32 kB, and a sum that 31 divides (RFC 1950).
    if len(head) > 1 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0:  # noqa: PLR2004
        return Compression.ZLIB
    return Compression.NONE


def decompressed(file: BinaryIO, compression: Compression) -> BinaryIO:
    """Return what is in a compressed file, as a file that can be read from its beginning."""
    return file if compression is Compression.NONE else io.BufferedReader(_Inflated(file, compression), _READ_BYTES)


class _Inflated(io.RawIOBase):
    """What is in a compressed file; several may be one behind the other in it, as ``cat a.gz b.gz`` makes them."""

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
    """Return what compresses a file; None if it shall not be."""
    return None if compression is Compression.NONE else zlib.compressobj(wbits=_WINDOW_BITS[compression])
