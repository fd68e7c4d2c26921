"""Step scheduler of a streamed feed: each partition counts once, and all workers take equally many steps.

A partition counts by the attempt that is first to arrive as a whole, on whichever node. The rows that count determine
the steps that all workers can take, without communication between them: full steps while every worker has a batch;
padded steps only if no full one is possible and the stream ends, or pauses, or the buffer of a worker is full, so that
no further rows would arrive.
"""

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from tensorflowonspark.feed_messages import (
    Backpressure,
    FeedId,
    FilesCounted,
    InputStarved,
    PartId,
    PartsStored,
    PartSummary,
    RowsConsumed,
    RowsRead,
    Shares,
    Split,
    StepGrant,
    StoredPart,
    StreamOpened,
)

_IN_HAND_BATCHES = 3  # taken and not yet trained on: two prefetched, and that of the current step


@dataclass
class _Worker:
    shares: Shares | None = None  # None until its program has begun to read
    rows: int = 0  # that count
    total: int | None = None  # that will count, if that is known
    granted: int = 0  # of these, the rows of granted steps
    taken: int = 0  # by its program
    pressed: bool = False
    starved: bool = False
    parts: list[StoredPart] = field(default_factory=list)  # that count and are not sent yet
    dropped: list[StoredPart] = field(default_factory=list)
    held: deque[tuple[PartId, int]] = field(default_factory=deque)  # and their rows, in the order of consumption

    @property
    def left(self) -> int:
        return self.rows - self.granted

    @property
    def has_all(self) -> bool:
        return self.total is not None and self.rows >= self.total

    def full_steps(self, step: int) -> int:
        """Return how many steps, from one on, the rows that are left fill."""
        assert self.shares is not None
        return self.shares.full_steps(self.shares.before(step) + self.left) - step

    def possible_steps(self, step: int) -> int | None:
        """Return the steps with these rows; None if no further rows come, so that no step waits for this worker."""
        full = self.full_steps(step)
        if full or not self.has_all:
            return full
        return 1 if self.left else None


class StepScheduler:
    """Schedules the steps of all workers; independent of Spark and of connections.

    Examples
    --------
    >>> scheduler = StepScheduler([0, 1], 0)
    >>> for number in (0, 1):
    ...     part = PartSummary(Split.TRAIN, PartId(number), 1, number, rows=4 + 4 * number)
    ...     for report in (StreamOpened(0, Shares(8, 2, number)), PartsStored(0, (part,))):
    ...         _ = scheduler.receive(number, report)
    >>> scheduler.grants()[1].steps
    ((1, 4),)
    >>> scheduler.finish()
    >>> scheduler.grants()[0].steps
    ((1, 0),)
    """

    def __init__(self, numbers: Sequence[int], feed: FeedId) -> None:
        self._workers = {number: _Worker() for number in numbers}
        self._feed = feed
        self.shared = len(numbers) > 1  # all workers take equally many steps; else each trains independently
        self.first: PartSummary | None = None  # the first part with rows that counts
        self.finished = False  # no more rows will arrive
        self.totals = dict.fromkeys(numbers, 0)  # how many rows each worker will have, as far as that is known
        self._counted: dict[PartId, PartSummary] = {}  # since the last pause
        self._steps = 0  # granted, if all take equally many
        self._batch = 0  # of the DataFrames; parts of those before are late
        self._flush = False

    # ---- events

    def receive(self, number: int, report: object) -> bool:
        """Note what a worker reports; return whether other steps may be possible now: most only took some rows."""
        worker = self._workers.get(number)
        if worker is None:
            return False
        match report:
            case StreamOpened():
                worker.shares = report.shares
                self.shared = self.shared and report.shares is not None
            case PartsStored():
                self._store(worker, report.parts)
            case RowsRead():
                worker.rows = report.rows
            case FilesCounted():  # when it has these, no step waits for more
                worker.total = self.totals[number] = report.rows
            case Backpressure():
                worker.pressed = True
            case InputStarved():
                worker.starved = True
            case RowsConsumed():
                worker.taken = report.rows
                return False
            case _:
                return False
        return True

    def _store(self, worker: _Worker, parts: Sequence[PartSummary]) -> None:
        for part in [part for part in parts if part.split is Split.TRAIN]:
            if part.part.batch < self._batch or part.part in self._counted:
                worker.dropped.append((part.part, part.attempt))
                continue
            self._counted[part.part] = part
            if part.rows and self.first is None:
                self.first = part
            worker.rows += part.rows
            worker.parts.append((part.part, part.attempt))
            worker.held.append((part.part, part.rows))

    def leave(self, number: int) -> None:
        """Note that a worker takes no more rows."""
        self._workers.pop(number, None)

    def pause(self, batch: int) -> None:
        """Note that all partitions of one DataFrame have arrived; `batch` is the number of the next one."""
        self._flush = True
        self._batch = batch
        self._counted.clear()

    def finish(self) -> None:
        """Note that no more rows will arrive."""
        self._flush = self.finished = True

    # ---- results

    def __contains__(self, number: int) -> bool:
        return number in self._workers

    @property
    def counted(self) -> list[PartSummary]:
        """The parts that count since the last pause, in the order of their partitions."""
        return [self._counted[part] for part in sorted(self._counted)]

    @property
    def parts(self) -> Set[PartId]:
        """Which parts these are."""
        return self._counted.keys()

    @property
    def rows(self) -> dict[int, int]:
        """How many rows of each worker count so far."""
        return {number: worker.rows for number, worker in self._workers.copy().items()}

    @property
    def all_counted(self) -> bool:
        """Whether it is known of every worker how many rows it will have."""
        return all(worker.total is not None for worker in self._workers.values())

    @property
    def all_received(self) -> bool:
        """Whether every worker has all the rows that it will have."""
        return all(worker.has_all for worker in self._workers.values())

    @property
    def all_taken(self) -> bool:
        """Whether the programs have taken all rows that count so far."""
        return all(worker.taken >= worker.rows for worker in self._workers.values())

    def held(self, number: int) -> tuple[list[PartId], int]:
        """Return the parts that a worker's program has not trained on completely, and the number of rows left."""
        worker = self._workers[number]
        left = worker.rows - worker.taken + (_IN_HAND_BATCHES * worker.shares.most if worker.shares else 0)
        held = sum(rows for _, rows in worker.held)
        while worker.held and held - worker.held[0][1] >= left:
            held -= worker.held.popleft()[1]
        return [part for part, rows in worker.held if rows], min(held, left)

    def grants(self) -> dict[int, StepGrant]:
        """Return the new grant of each node that has one."""
        if not self.shared:
            grants = {number: self._grant(worker, None) for number, worker in self._workers.items()}
            for worker in self._workers.values():
                worker.pressed = worker.starved = False
        elif all(worker.shares for worker in self._workers.values()):
            steps = self._next_steps()
            grants = {number: self._grant(worker, steps[number]) for number, worker in self._workers.items()}
        else:
            return {}
        self._flush = False
        return {number: grant for number, grant in grants.items() if grant is not None}

    def _grant(self, worker: _Worker, steps: list[tuple[int, int]] | None) -> StepGrant | None:
        flush = self._flush or (worker.pressed and steps is None)
        fill = worker.starved and not self.all_taken
        if not (worker.parts or worker.dropped or steps or flush or fill):
            return None
        grant = StepGrant(
            self._feed,
            tuple(worker.parts),
            tuple(worker.dropped),
            None if steps is None else tuple(steps),
            flush,
            fill,
            self.finished,
        )
        worker.parts, worker.dropped = [], []
        return grant

    def _next_steps(self) -> dict[int, list[tuple[int, int]]]:
        """Return the next steps of each worker, as pairs of a number of steps and the rows for them."""
        steps: dict[int, list[tuple[int, int]]] = {number: [] for number in self._workers}
        while count := self._count_possible():
            for number, worker in self._workers.items():
                assert worker.shares is not None
                room = worker.shares.before(self._steps + count) - worker.shares.before(self._steps)
                real = min(room, worker.left)
                steps[number].append((count, real))
                worker.granted += real
            self._steps += count
        return steps

    def _count_possible(self) -> int:
        """Return how many steps of one kind, full or padded, are possible next."""
        workers = self._workers.values()
        possible = [each.possible_steps(self._steps) for each in workers]
        full = min((steps for steps in possible if steps is not None), default=0)
        pressed = [worker for worker in workers if worker.pressed and worker.left]
        for worker in workers:
            worker.pressed = False
        if full or not (self._flush or pressed):
            return full
        # Padded steps: as many at once as every worker with rows has full batches.
        holding = [worker.full_steps(self._steps) for worker in workers if worker.left]
        return max(1, min(holding)) if holding and (self._flush or not full) else 0
