"""Rows as numpy arrays, or ragged where they differ in length: cut, put together, repeated."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tensorflowonspark.columns.kinds import Kind

__all__ = ["Array", "Ragged", "concatenate", "repeat_rows", "split_at", "zeros"]

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: all values in one array, and for each level of nesting where its lists are split.

    `splits` are as in `tf.RaggedTensor.from_nested_row_splits`: each starts with 0, and has one more entry than there
    are lists.
    """

    values: Array
    splits: tuple[Numbers, ...]

    def __len__(self) -> int:
        return len(self.splits[0]) - 1

    def __getitem__(self, rows: slice) -> "Ragged":
        """Return some neighbouring rows, in a view."""
        start, stop, _ = rows.indices(len(self))
        stop = max(start, stop)
        splits = []
        for level in self.splits:
            bounds = level[start : stop + 1]
            start, stop = int(bounds[0]), int(bounds[-1])
            splits.append(bounds - start)
        return Ragged(self.values[start:stop], tuple(splits))

    def rows(self) -> Array:
        """Return an object array with an array, or a list of arrays, for each row.

        Examples
        --------
        >>> Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),)).rows()
        array([array([1]), array([2, 3])], dtype=object)
        """
        parts: Any = self.values
        for level in reversed(self.splits):
            parts = [parts[start:stop] for start, stop in pairwise(level.tolist())]
        out = np.empty(len(parts), dtype=object)
        for number, part in enumerate(parts):  # an assignment of all at once takes equal lengths for a dimension
            out[number] = part
        return out


def split_at(lengths: npt.NDArray[Any]) -> Numbers:
    """Return where lists of these lengths are split.

    Examples
    --------
    >>> split_at(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits


def concatenate(pieces: Sequence[Array | Ragged]) -> Array | Ragged:
    """Return the rows of several arrays of one kind, in one.

    Examples
    --------
    >>> one = Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),))
    >>> concatenate([one, one]).splits
    (array([0, 1, 3, 4, 6]),)
    """
    if len(pieces) == 1:
        return pieces[0]
    ragged = [piece for piece in pieces if isinstance(piece, Ragged)]
    if not ragged:
        return np.concatenate(cast("Sequence[Array]", pieces))
    levels = zip(*(piece.splits for piece in ragged), strict=True)
    splits = tuple(split_at(np.concatenate([np.diff(level) for level in pieces])) for pieces in levels)
    return Ragged(np.concatenate([piece.values for piece in ragged]), splits)


def repeat_rows(rows: Array | Ragged, numbers: Numbers) -> Array | Ragged:
    """Return rows by their numbers; a row may come several times.

    Examples
    --------
    >>> repeat_rows(Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),)), np.array([1, 0, 1])).values
    array([2, 3, 1, 2, 3])
    """
    if not isinstance(rows, Ragged):
        return rows[numbers]
    splits = []
    for level in rows.splits:
        starts, lengths = level[numbers], level[numbers + 1] - level[numbers]
        splits.append(split_at(lengths))
        numbers = np.repeat(starts - splits[-1][:-1], lengths) + np.arange(splits[-1][-1])
    return Ragged(rows.values[numbers], tuple(splits))


def zeros(rows: int, kind: Kind) -> Array | Ragged:
    """Return rows of zeros, of empty strings, or of nothing where they are ragged."""
    empty: object = 0 if kind.dtype.kind != "O" else "" if kind.text else b""
    if not kind.ragged:
        return np.full((rows, *kind.inner), empty, dtype=kind.dtype)
    splits = (np.zeros(rows + 1, np.int64), *(np.zeros(1, np.int64) for _ in range(kind.varying - 1)))
    return Ragged(np.full((0, *kind.inner), empty, dtype=kind.dtype), splits)
