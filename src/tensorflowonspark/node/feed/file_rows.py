"""Rows of files that are read anew in each epoch, and never stored: data of any size in bounded memory.

An epoch is a sequence of windows (`windows.py`). While the program takes the rows of one, the next is read. The numbers
of rows are known before (Parquet's footers have them; those of TFRecord files are counted in the first epoch, see
`counting.py`), so all workers take the same number of steps, and an epoch can begin at any step without reading the
windows before.
"""

from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import numpy.typing as npt

from tensorflowonspark.columns import summarize
from tensorflowonspark.node.feed.order import row_order
from tensorflowonspark.node.feed.selection import Selection
from tensorflowonspark.node.feed.shard import Segment, Shard
from tensorflowonspark.node.feed.windows import (
    FileSplit,
    Piece,
    Read,
    WindowPlan,
    check_rows,
    plan_windows,
    read_windows,
    window_pieces,
)


@dataclass
class FileRows:
    """The splits of some files that are one worker's."""

    splits: Sequence[FileSplit]
    counts: Sequence[int]  # rows of each split
    row_bytes: float  # mean size of a row in memory, as far as the first rows show it
    limit_bytes: int  # that the rows in memory should not exceed
    left: npt.NDArray[np.bool_] | None = None  # which rows a pass has; None: all
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self._starts = np.cumsum([0, *self.counts])
        self.rows = int(self._starts[-1])

    def bytes_per_row(self, names: Iterable[str]) -> float:  # noqa: ARG002 - all columns that are read are in memory
        """Return the mean size of a row, in bytes."""
        return self.row_bytes

    def window_rows(self, batch_rows: int) -> int:
        """Return how many rows a window has (`plan_windows`)."""
        return plan_windows(0, None, batch_rows, self.row_bytes, self.limit_bytes).window_rows

    def only(self, left: npt.NDArray[np.bool_]) -> "FileRows":
        """Return those rows that are left to take in an epoch."""
        return replace(self, left=left)

    def segments(
        self,
        selection: Selection,
        seed: Sequence[int] | None,
        batch_rows: int,
        first_row: int,
    ) -> Generator[Segment, None, None]:
        """Yield the windows of one epoch, from that of a row on (`Rows`).

        A file that can't be read, has changed, or has values of another kind than the first rows is a `FeedError`.
        """
        plan = plan_windows(len(self.splits), seed, batch_rows, self.row_bytes, self.limit_bytes)
        first, before = self._window_of(first_row, plan)
        windows = read_windows(self.splits, plan, self.counts, first)
        ahead = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        try:
            reading = ahead.submit(next, windows, None)
            for number in count(first):
                window = reading.result()
                if window is None:
                    return
                shard = self._shard(selection, window)
                reading = ahead.submit(next, windows, None)
                left_here = None if self.left is None else self._left_of(window, self.left)
                rows = row_order(shard.rows, seed, (number,), left_here)
                yield Segment(before, shard.reader(selection.kinds), rows)
                before += len(rows)
        finally:
            ahead.shutdown(wait=False, cancel_futures=True)
            with suppress(ValueError):  # it runs in the other thread, and is dropped with that
                windows.close()

    def _window_of(self, row: int, plan: WindowPlan) -> tuple[int, int]:
        """Return the window with a row, of those that are left, and how many of these come before the window."""
        if self.left is None:
            return row // plan.window_rows, row // plan.window_rows * plan.window_rows
        before = number = 0
        for number, pieces in enumerate(window_pieces(plan, self.counts)):
            rows = int(np.count_nonzero(self._left_of(pieces, self.left)))
            if before + rows > row:
                return number, before
            before += rows
        return number + 1, before

    def _left_of(self, window: Sequence[Piece | Read], left: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which rows of a window are left."""
        return np.concatenate([left[self._starts[each.split] + each.first_row :][: each.rows] for each in window])

    def _shard(self, selection: Selection, window: list[Read]) -> Shard:
        """Return a window's rows; refuse values of another kind than the first rows have."""
        for each in window:
            name = self.splits[each.split].name
            check_rows(selection, summarize(each.batch, each.split, each.first_row), each.split, name)
        return Shard([[each.batch for each in window]])
