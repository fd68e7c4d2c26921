"""The batches of rows that are not kept: each row is handed out once, as it comes.

Tasks send parts to the node, which holds as much as it may (`Cache`); the driver confirms which of them count, once
for each partition, and how many steps all workers can take with what they have (`driver/feed/scheduler.py`). Nothing is
handed out before it is confirmed, so that a task that Spark repeats brings no row twice.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark import columns
from tensorflowonspark.columns import Array, Ragged
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import InputStarved, RowsConsumed, SplitManifest, StepGrant, StreamOpened
from tensorflowonspark.keras.feed_tracking import note_rows, row_counts
from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.cache import Cache
from tensorflowonspark.node.feed.epochs import BLOCK_BYTES, BLOCK_ROWS
from tensorflowonspark.node.feed.selection import Batch, Selection
from tensorflowonspark.node.feed.shard import Reader, Shard

__all__ = ["Stream"]

_Rows = dict[str, Array | Ragged]
_TOLD_SECONDS = 0.3  # between two counts of the rows that were taken
_STARVED_SECONDS = 1.0  # that a step waits before the driver is asked whether it has to


class Stream:
    """Hands out the rows of one stream.

    Parameters
    ----------
    feed : int
        The feed's number.
    cache : Cache
        Where its parts are.
    confirmed : callable
        Returns what the driver confirms next; waits for it, or for so many seconds.
    tell : callable
        Takes messages to the driver.
    report : callable
        Takes a `Progress` before each batch.
    """

    def __init__(
        self,
        feed: int,
        cache: Cache,
        confirmed: Callable[..., StepGrant | None],
        tell: Callable[[object], None],
        report: Callable[[Progress], None],
    ) -> None:
        self._feed = feed
        self._cache = cache
        self._confirmed = confirmed
        self._tell = tell
        self._report = report
        self._opened = False

    def batches(
        self,
        selection: Selection,
        batch_rows: int,
        seed: int | None,
        on_end: Callable[[int], None] | None = None,
        *,
        apart: bool = False,
    ) -> Iterator[Batch]:
        """Yield the batches of the only pass; `apart` is a worker of asynchronous training."""
        note_rows()
        self._open(batch_rows)
        rows = _Waiting(selection, seed)
        for number, step in enumerate(self._steps(rows, batch_rows, apart)):
            batch = rows.take(step.rows, step.size)
            self._report(Progress(0, number + 1, 0, rows.taken))
            yield batch
        row_counts.add(rows.taken)
        if on_end is not None:
            on_end(0)

    def partitions(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the batches of one partition after the other as they were sent; this worker has no steps with others.

        Those of one must have been taken before the next is asked for.
        """
        self._open(None)
        taken, end = 0, False
        while not end:
            word = self._next_word(taken, apart=False)
            self._drop(word)
            for part in word.parts:
                shard, _, release = self._cache.take_part(self._feed, part)
                yield self._counted(shard, taken)
                taken += shard.rows
                release()
            end = word.end

    def _counted(self, shard: Shard, taken: int) -> Iterator[pa.RecordBatch]:
        told = time.monotonic()
        for batch in shard.batches:
            yield batch
            taken += batch.num_rows
            if time.monotonic() - told > _TOLD_SECONDS:
                told = time.monotonic()
                self._tell(RowsConsumed(self._feed, taken))

    def _open(self, batch_rows: int | None) -> None:
        if self._opened:
            raise FeedError(
                "the rows of a stream can be passed over just once (one epoch, one data set): feed them with "
                "cache='disk' to come back to them, or use steps_per_epoch"
            )
        self._opened = True
        self._tell(StreamOpened(self._feed, batch_rows))

    def _drop(self, word: StepGrant) -> None:
        for part in word.dropped:
            self._cache.drop_part(self._feed, part)

    def _steps(self, rows: "_Waiting", batch_rows: int, apart: bool) -> Iterator["_Step"]:
        """Yield the steps that are possible; wait for the driver's word where none is."""
        end = False
        while not end:
            word = self._next_word(rows.taken, apart)
            end = word.end
            self._drop(word)
            for part in word.parts:
                rows.add(self._cache, self._feed, part)
            if word.steps is None:
                yield from self._own_steps(rows, batch_rows, word.flush, word.fill)
            else:
                for count, real in word.steps:
                    yield from (_Step(real, batch_rows) for _ in range(count))

    def _next_word(self, taken: int, apart: bool) -> StepGrant:
        self._tell(RowsConsumed(self._feed, taken))
        self._cache.program_waits(self._feed, True)
        while (word := self._confirmed(_STARVED_SECONDS if apart else None)) is None:
            # A coordinator that waits for this step makes none for the workers that have rows, and this one gets none
            # before they have taken theirs.
            self._tell(InputStarved(self._feed))
        self._cache.program_waits(self._feed, False)
        if word.failed:
            raise FeedError(f"the stream broke off after {taken} rows: {word.failed}")
        return word

    def _own_steps(self, rows: "_Waiting", batch_rows: int, flush: bool, fill: bool) -> Iterator["_Step"]:
        """Yield the steps of a worker that no other waits for: full ones, and the rest where it is wanted."""
        if fill and not rows.count:
            yield _Step(0, batch_rows)
        while rows.count >= batch_rows:
            yield _Step(batch_rows, batch_rows)
        if (flush or fill) and rows.count:
            yield _Step(rows.count, rows.count)


@dataclass(frozen=True)
class _Step:
    rows: int  # that are real
    size: int


class _Waiting:
    """The rows that were confirmed and not yet handed out, in order; each part's rows are shuffled among themselves."""

    def __init__(self, selection: Selection, seed: int | None) -> None:
        self._selection = selection
        self._seed = seed
        self._parts: deque[tuple[Reader, npt.NDArray[np.int64], int, Callable[[], None]]] = deque()
        self._block: _Rows = {}
        self._at = self._stop = 0  # what is left of the block
        self._last: tuple[int, _Rows] = 0, {}  # real rows, to fill up with: a whole batch, for BatchNorm's statistics
        self.count = 0
        self.taken = 0

    def add(self, cache: Cache, feed: int, part: tuple[int, int]) -> None:
        """Append a part."""
        shard, summary, release = cache.take_part(feed, part)
        if not shard.rows:
            release()
            return
        self._selection.check(SplitManifest({}, columns=summary.columns, schema=summary.schema))
        order = np.arange(shard.rows)
        if self._seed is not None:
            order = np.random.default_rng([self._seed, part[0]]).permutation(shard.rows)
        per_row = max(1.0, shard.bytes_per_row(self._selection.kinds))
        block_rows = max(1, int(min(BLOCK_ROWS, BLOCK_BYTES / per_row)))
        self._parts.append((shard.reader(self._selection.kinds), order, block_rows, release))
        self.count += shard.rows

    def take(self, rows: int, size: int) -> Batch:
        """Return the next rows, filled up to a size."""
        pieces: list[_Rows] = []
        missing = rows
        while missing:
            if self._at == self._stop:
                self._next_block()
            stop = min(self._stop, self._at + missing)
            pieces.append({name: values[self._at : stop] for name, values in self._block.items()})
            missing -= stop - self._at
            self._at = stop
        self.count -= rows
        self.taken += rows
        kinds = self._selection.kinds
        values = {name: columns.concatenate([piece[name] for piece in pieces]) for name in kinds} if pieces else {}
        if rows:
            self._last = rows, values
        return self._filled(values, rows, size), np.arange(size) < rows

    def _filled(self, values: _Rows, rows: int, size: int) -> _Rows:
        if rows == size:
            return values
        count, source = (rows, values) if rows else self._last
        if not count:
            return {name: columns.zeros(size, kind) for name, kind in self._selection.kinds.items()}
        return {name: columns.repeat_rows(each, np.arange(size) % count) for name, each in source.items()}

    def _next_block(self) -> None:
        reader, order, block_rows, release = self._parts.popleft()
        self._block = reader.take(order[:block_rows])
        self._at, self._stop = 0, min(block_rows, len(order))
        if len(order) > block_rows:
            self._parts.appendleft((reader, order[block_rows:], block_rows, release))
        else:
            release()
