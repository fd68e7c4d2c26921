"""Bins: sequences, or pieces of them, that together have at most so many values, for few bins and little padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorflowonspark.node.feed.order import Numbers

_WINDOW = 8192  # sequences that share bins: a bin has long and short ones, and the last one of a window is not full


@dataclass(frozen=True)
class Bins:
    """Pieces of sequences by bins; each array but the last has an entry for each piece, in the order of the bins."""

    sequence: Numbers  # its number
    begin: Numbers  # its first value in the sequence
    size: Numbers
    place: Numbers  # of its first value in the bin
    starts: Numbers  # the first piece of each bin, and the number of all pieces

    def __len__(self) -> int:
        return len(self.starts) - 1


def pack(lengths: Numbers, capacity: int, order: Numbers, *, splits: bool = False) -> Bins:
    """Return sequences in bins of a capacity, taken in an order: best fit, the longest of a window first.

    What exceeds the capacity is divided with `splits`, else cut off. Empty sequences are in no bin.

    Examples
    --------
    >>> bins = pack(np.array([3, 5, 2, 4]), 6, np.arange(4))
    >>> [bins.sequence[start:stop].tolist() for start, stop in zip(bins.starts, bins.starts[1:])]
    [[1], [2, 3], [0]]
    """
    sizes = lengths[order] if splits else np.minimum(lengths[order], capacity)
    pieces = -(-sizes // capacity)
    sequence = np.repeat(order, pieces)
    begin = capacity * (np.arange(len(sequence)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
    size = np.minimum(np.repeat(sizes, pieces) - begin, capacity)
    bins = np.empty(len(size), np.int64)
    first = 0
    for start in range(0, len(size), _WINDOW):
        window = slice(start, start + _WINDOW)
        bins[window], count = _best_fit(size[window].tolist(), capacity)
        bins[window] += first
        first += count
    by_bin = np.argsort(bins, kind="stable")
    bins, size = bins[by_bin], size[by_bin]
    starts = np.searchsorted(bins, np.arange(first + 1))
    before = np.cumsum(size) - size
    return Bins(sequence[by_bin], begin[by_bin], size, before - before[starts[:-1]][bins], starts)


def join(found: Sequence[Bins]) -> Bins:
    """Return all of some bins, one after the other; there is at least one entry."""
    pieces = np.cumsum([0, *(len(each.sequence) for each in found)])
    starts = [each.starts[:-1] + before for each, before in zip(found, pieces, strict=False)]
    sequence, begin, size, place = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("sequence", "begin", "size", "place")
    )
    return Bins(sequence, begin, size, place, np.append(np.concatenate(starts), pieces[-1]))


def _best_fit(sizes: Sequence[int], capacity: int) -> tuple[list[int], int]:
    """Return the bin of each size, and how many there are."""
    bins = [0] * len(sizes)
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]  # the bins by the room that is left in them
    rooms = count = 0  # a bit for each room that some bin has
    for place in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        size = sizes[place]
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            number = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, number, count = capacity, count, count + 1
        bins[place] = number
        if room > size:
            with_room[room - size].append(number)
            rooms |= 1 << (room - size)
    return bins, count
