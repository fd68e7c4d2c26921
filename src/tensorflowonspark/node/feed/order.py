"""The order in which a pass has a node's rows: their own, or a full shuffle.

Of up to 16 million rows it is a list of numbers. Of more, each part is computed when it is looked at, so that an epoch
takes no memory that grows with its rows.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]
_Words = npt.NDArray[np.uint64]

_LISTED_ROWS = 1 << 24  # in four bytes each
_ROUNDS = 6  # four of them are enough for long words, but leave more neighbours together in short ones


class Order(Protocol):
    """Numbers of rows: a slice of it is an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Numbers: ...


def row_order(rows: int, seed: Sequence[int] | None, part: Sequence[int] = (), left: Mask | None = None) -> Order:
    """Return the numbers of so many rows, fully shuffled if there is a seed.

    A part or window has an order of its own, by its numbers `part`. With `left` the others keep their places in the
    order, and are left out; such an order is a list.

    Examples
    --------
    >>> row_order(4, None)[1:], row_order(4, [7])[:]
    (array([1, 2, 3], dtype=uint32), array([0, 2, 1, 3], dtype=uint32))
    """
    if seed is not None:
        seed = [*seed, *part]
    if left is not None:
        numbers = row_order(rows, seed)[:]
        return numbers[left[numbers]]
    if rows > _LISTED_ROWS:
        return _Computed(rows, seed)
    order: Numbers = np.arange(rows, dtype=np.uint32)
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    return order


class _Computed:
    """An order of which each number is computed from its place.

    A Feistel network [1]_ permutes all numbers of twice some bits. A result that is no row's number is permuted again,
    until one is [2]_.

    References
    ----------
    .. [1] M. Luby and C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988.
    .. [2] J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002: "cycle walking".
    """

    def __init__(self, rows: int, seed: Sequence[int] | None) -> None:
        self._rows = rows
        self._half = np.uint64(((rows - 1).bit_length() + 1) // 2)  # bits
        self._mask = (np.uint64(1) << self._half) - np.uint64(1)
        random = np.random.default_rng(seed)
        self._keys: _Words = random.integers(1 << 64, size=_ROUNDS if seed is not None else 0, dtype=np.uint64)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, part: slice) -> Numbers:
        found = self._permuted(np.arange(*part.indices(self._rows), dtype=np.uint64))
        while len(others := np.flatnonzero(found >= self._rows)):
            found[others] = self._permuted(found[others])
        return found.view(np.int64)

    def _permuted(self, numbers: _Words) -> _Words:
        high, low = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            high, low = low, high ^ (_scrambled(low ^ key) & self._mask)
        found: _Words = high << self._half | low
        return found


def _scrambled(words: _Words) -> _Words:
    """Return words of which each bit depends on all bits of the given ones (the end of SplitMix64)."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: _Words = words ^ words >> np.uint64(31)
    return mixed
