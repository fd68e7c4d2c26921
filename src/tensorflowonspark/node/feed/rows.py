"""Rows of one worker in the order in which a pass hands them out."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tensorflowonspark import columns
from tensorflowonspark.columns import Array, Kind, Ragged
from tensorflowonspark.node.feed.order import Mask, Order
from tensorflowonspark.node.feed.shard import Allocate, Reader, Segment

if TYPE_CHECKING:
    from tensorflowonspark.node.feed.selection import Selection

Values = dict[str, Array | Ragged]


class Rows(Protocol):
    """The rows of one worker, which can be passed over again and again."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def bytes_per_row(self, names: Iterable[str]) -> float:
        """Return the mean size of a row's values in some columns, in bytes."""

    def window_rows(self, batch_rows: int) -> int:
        """Return how many rows at a time are in an epoch's order; 0 if all are (`taken.StepSpan`)."""

    def segments(
        self,
        selection: "Selection",
        seed: Sequence[int] | None,
        batch_rows: int,
        first_row: int,
    ) -> Generator[Segment, None, None]:
        """Yield the rows of one epoch, from one on.

        Each segment but the last has a multiple of `batch_rows`, those of one or several steps, if all rows are left.
        The first one includes the row number `first_row` of those that are left.
        """

    def only(self, left: Mask) -> "Rows":
        """Return those that are left to take in an epoch; the others keep their places in its order."""


class RowQueue:
    """Rows that are there and not yet handed out.

    Copies of the rows of a batch are kept to pad with. `count` rows are left, and `taken` have been handed out.
    """

    def __init__(self, kinds: Mapping[str, Kind], batch_rows: int) -> None:
        self.count = self.taken = 0
        self._kinds = kinds
        self._batch_rows = batch_rows
        self._segments: deque[tuple[Reader, Order, int, Callable[[], object]]] = deque()  # from a place on
        self._gathered: Values = {}  # the first rows of the first segment, and some that were handed out before them
        self._gathered_rows = self._handed_out = 0
        # The last rows, once none is left. They have arrays of their own: TensorFlow writes to those that it gets.
        self._spare: Values = {}
        self._spare_rows = 0

    def add(self, reader: Reader, order: Order, skip: int = 0, release: Callable[[], object] = lambda: None) -> None:
        """Append rows.

        `skip` rows of the order have been handed out before; `release` is called when all have.
        """
        if skip < len(order):
            self._segments.append((reader, order, skip, release))
            self.count += len(order) - skip
        else:
            self._end(reader, order, release)

    def take(self, rows: int, size: int, empty: Allocate = np.empty) -> Values:
        """Return the next rows, padded to a size; only if they are the last ones is the size another one.

        Padding repeats real rows, so that batch statistics stay those of real data; a worker without any row pads with
        zeros.
        """
        pieces: list[Values] = []
        missing = rows
        while missing:
            reader, order, start, release = self._segments.popleft()
            piece, number = self._next(reader, order, start, missing, empty)
            pieces.append(piece)
            if len(order) > start + number:
                self._segments.appendleft((reader, order, start + number, release))
            else:
                self._end(reader, order, release)
            missing -= number
        self.count -= rows
        self.taken += rows
        if size > rows or not pieces:
            pieces.append(self._padding(size - rows))
        if len(pieces) == 1:
            return pieces[0]
        return {name: columns.concatenate([each[name] for each in pieces]) for name in self._kinds}

    def _next(self, reader: Reader, order: Order, start: int, most: int, empty: Allocate) -> tuple[Values, int]:
        """Return the next rows of an order, and how many they are: some were gathered before with those before."""
        if self._handed_out == self._gathered_rows:
            stretch = order[start : start + reader.stretch(order[start : start + most])]
            self._gathered, self._gathered_rows, self._handed_out = reader.take(stretch, empty), len(stretch), 0
        first = self._handed_out
        last = self._handed_out = min(first + most, self._gathered_rows)
        piece = self._gathered
        if last - first < self._gathered_rows:
            piece = {name: each[first:last] for name, each in piece.items()}
        if last == self._gathered_rows:
            self._gathered = {}
        return piece, last - first

    def _end(self, reader: Reader, order: Order, release: Callable[[], object]) -> None:
        """Let go of rows that have been handed out, but for a copy of some if they may be the last."""
        if len(order) and not self._segments:
            taken = reader.take(order[max(0, len(order) - self._batch_rows) :])
            self._spare_rows = min(self._batch_rows, len(order))
            self._spare = {name: columns.repeat_rows(each, np.arange(self._spare_rows)) for name, each in taken.items()}
        release()

    def _padding(self, rows: int) -> Values:
        if not self._spare_rows:
            return {name: columns.zeros(rows, kind) for name, kind in self._kinds.items()}
        numbers = np.arange(rows) % self._spare_rows
        return {name: columns.repeat_rows(each, numbers) for name, each in self._spare.items()}
