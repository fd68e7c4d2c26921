"""Spans of a buffer, each of a record, and how what is in them is copied together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["PADDING_BYTES", "BadRecords", "Ints", "Spans", "gather", "joined", "within"]

Ints = npt.NDArray[np.int64]

# Behind the last record there are so many zero bytes, so that a number that is cut off ends, and need not be watched.
PADDING_BYTES = 16


class BadRecords(Exception):
    """Some records can't be read.

    Attributes
    ----------
    reasons : dict
        Of each of them, by its number: a position in the buffer, and what is wrong there.
    """

    def __init__(self, records: Iterable[int], positions: Iterable[int], reason: str) -> None:
        super().__init__(reason)
        self.reasons = {int(record): (int(at), reason) for record, at in zip(records, positions, strict=True)}


@dataclass(frozen=True)
class Spans:
    """Some spans of the buffer, in the order of their records."""

    start: Ints
    end: Ints
    record: Ints

    def __len__(self) -> int:
        return len(self.start)

    def take(self, which: npt.NDArray[np.generic]) -> "Spans":
        """Return some of them, by a mask or by their numbers."""
        return Spans(self.start[which], self.end[which], self.record[which])


def joined(spans: Sequence[Spans]) -> Spans:
    """Return all of these, one behind the other."""
    none = np.empty(0, np.int64)
    return Spans(
        np.concatenate([none, *(each.start for each in spans)]),
        np.concatenate([none, *(each.end for each in spans)]),
        np.concatenate([none, *(each.record for each in spans)]),
    )


def gather(data: npt.NDArray[np.uint8], start: Ints, end: Ints) -> pa.Array:
    """Return spans of a buffer as a binary array: native code copies them together.

    Every second value of an array whose offsets are all beginnings and ends is wanted. The spans must neither overlap
    nor go back.
    """
    count = len(start)
    wide = len(data) > np.iinfo(np.int32).max
    offsets = np.zeros(2 * count + 1, np.int64 if wide else np.int32)
    offsets[1::2] = start
    offsets[2::2] = end
    kind = pa.large_binary() if wide else pa.binary()
    all_spans = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return all_spans.take(pa.array(np.arange(1, 2 * count, 2)))


def within(array: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the bytes of all values of a binary array, one behind the other, and where each begins (and the end)."""
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets, values = array.buffers()
    dtype = np.int64 if wide else np.int32
    places = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * np.dtype(dtype).itemsize)
    data = np.frombuffer(values, np.uint8) if values is not None else np.empty(0, np.uint8)
    return data[places[0] : places[-1]], (places - places[0]).astype(np.int64)
