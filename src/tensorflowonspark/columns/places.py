"""Places of rows in a DataFrame: a partition and a row in it, in one number as of ``monotonically_increasing_id``."""

import numpy as np
import numpy.typing as npt

PLACE_BITS = 33  # of the row's number; the partition's has the bits above
# Of XXH64, and Spark's seed.
_PRIMES = [
    np.uint64(each)
    for each in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
]
_SEED = np.uint64(42 + 8)  # and the bytes of a number


def mixed_order(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the order in which Spark has rows that it sorts by ``xxhash64`` of their places.

    Examples
    --------
    >>> mixed_order(np.arange(5)).tolist()
    [1, 0, 2, 4, 3]
    """
    first, second, third, fourth, fifth = _PRIMES
    with np.errstate(over="ignore"):
        found = _rotated(places.astype(np.uint64) * second, 31) * first
        found = _rotated((_SEED + fifth) ^ found, 27) * first + fourth
        found = (found ^ (found >> np.uint64(33))) * second
        found = (found ^ (found >> np.uint64(29))) * third
        found ^= found >> np.uint64(32)
    return np.argsort(found.view(np.int64), kind="stable")


def _rotated(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    rotated: npt.NDArray[np.uint64] = (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
    return rotated
