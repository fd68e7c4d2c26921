"""Places of rows in a DataFrame: a partition and a row in it, in one number as of ``monotonically_increasing_id``.

No other module knows how the two make one number.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pyspark.sql import Column

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

_ROW_BITS = 33  # the partition's number has the bits above
_SEED, _BYTES = np.uint32(42), np.uint32(8)  # of Spark's hashes, and of a number


def places_of(partition: int, rows: Numbers) -> Numbers:
    """Return the places of rows of a partition, by their numbers in it."""
    places: Numbers = (partition << _ROW_BITS) + rows
    return places


def split_places(places: Numbers) -> tuple[Numbers, Numbers]:
    """Return the partitions of places, and the rows' numbers in them.

    Examples
    --------
    >>> [each.tolist() for each in split_places(places_of(3, np.arange(2)))]
    [[3, 3], [0, 1]]
    """
    return places >> _ROW_BITS, places & ((1 << _ROW_BITS) - 1)


def split_column(place: str) -> "tuple[Column, Column]":
    """Return the same of a column of Spark's."""
    from pyspark.sql import functions as f

    return f.shiftright(place, _ROW_BITS), f.col(place).bitwiseAND((1 << _ROW_BITS) - 1)


def spark_hash(numbers: Numbers) -> npt.NDArray[np.int32]:
    """Return Spark's ``hash`` of numbers, which is Murmur3.

    Examples
    --------
    >>> spark_hash(np.array([0, 1])).tolist()
    [-1670924195, -1712319331]
    """
    found = np.full(len(numbers), _SEED)
    for word in numbers.astype("<i8").view("<u4").reshape(-1, 2).T:
        mixed = _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        found = _rotated(found ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    found ^= _BYTES
    found = (found ^ (found >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    found = (found ^ (found >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    hashed: npt.NDArray[np.int32] = (found ^ (found >> np.uint32(16))).view(np.int32)
    return hashed


def mixed_order(places: Numbers) -> Numbers:
    """Return the order in which Spark has rows that it sorts by the ``hash`` of their places, then by these.

    Examples
    --------
    >>> mixed_order(np.arange(5)).tolist()
    [1, 0, 2, 3, 4]
    """
    return np.lexsort((places, spark_hash(places)))


def _rotated(values: Words, bits: int) -> Words:
    rotated: Words = (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
    return rotated
