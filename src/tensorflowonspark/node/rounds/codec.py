"""Vectors of float32 or float64 as bytes: as they are, or as float16 with an exponent for each block of values."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorflowonspark.keras.round_state import Vector

BLOCK = 1024  # values that share an exponent
PIECE = 1 << 19  # values of one message: a multiple of the block
_HALF_EXPONENT = 15  # float16 has values up to 2**16: those of a block are scaled to below 2**15
_SINGLE = np.dtype(np.float32)
_LOWEST, _HIGHEST = -113, 100  # exponents by which float32 can be multiplied exactly


def pieces(size: int) -> Iterator[slice]:
    """Yield the slices of a vector that are sent as one message each.

    Examples
    --------
    >>> [each.stop for each in pieces((1 << 19) + 5)]
    [524288, 524293]
    """
    for start in range(0, size, PIECE):
        yield slice(start, min(start + PIECE, size))


def encode(values: Vector, *, half: bool) -> bytes:
    """Return some values as bytes.

    The values are float32 or float64; for float16 (`half`) from -2**127 to 2**127. Then each block of values is
    multiplied by a power of two, so that the largest neither overflows nor loses precision: every value has an error of
    at most 2**-11 of itself, or 2**-39 of the largest of its block.

    Examples
    --------
    >>> data = encode(np.array([2.0**100, -1.0], np.float32), half=True)
    >>> decode(data, 2, half=True).tolist() == [2.0**100, 0.0], len(data)
    (True, 5)
    """
    if not half:
        return bytes(values.astype(values.dtype.newbyteorder("<"), copy=False).data)
    padded = np.zeros(-(-len(values) // BLOCK) * BLOCK, np.float32)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, BLOCK)
    _, exponents = np.frexp(np.abs(blocks).max(axis=1, initial=0.0))
    shifts = np.clip(_HALF_EXPONENT - exponents, _LOWEST, _HIGHEST).astype(np.int8)
    scaled = blocks * np.ldexp(np.float32(1.0), shifts.astype(np.int32))[:, None]
    return b"".join([shifts.data, scaled.astype("<f2").ravel()[: len(values)].data])


def decode(data: bytes, size: int, *, half: bool, dtype: np.dtype[Any] = _SINGLE) -> Vector:
    """Return the values that were encoded, as a type.

    It is a `ValueError` if the bytes are not those of as many values.
    """
    blocks = -(-size // BLOCK) if half else 0
    if len(data) != (blocks + 2 * size if half else dtype.itemsize * size):
        raise ValueError(f"{len(data)} bytes are not {size} values: all workers must run the same version")
    if not half:
        return np.frombuffer(data, dtype.newbyteorder("<"))
    shifts = np.frombuffer(data, np.int8, blocks).astype(np.int32)
    padded = np.zeros(blocks * BLOCK, np.float32)
    padded[:size] = np.frombuffer(data, "<f2", size, blocks)
    padded.reshape(-1, BLOCK)[:] *= np.ldexp(np.float32(1.0), -shifts)[:, None]
    return padded[:size].astype(dtype, copy=False)
