"""Progress of a feed: what the nodes report of it, the time-out without any, and the rows that a node holds."""

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.driver.sharing.scheduler import StepScheduler
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import PartId, RowsConsumed, RowsReceived, StreamOpened
from tensorflowonspark.settings import check_seconds

_NAMED_PARTITIONS = 8  # more are counted


def describe_rows(parts: Sequence[PartId], feed: int, rows: int) -> str:
    """Return a description of the rows that a node holds, which are named if it is lost.

    Examples
    --------
    >>> describe_rows([PartId(1), PartId(3)], 0, 2000)
    'partitions 1 and 3 of feed 0 (2,000 rows)'
    """
    if not rows:
        return ""
    names = [str(partition) for partition in dict.fromkeys(part.partition for part in parts)]
    if not names or len(names) > _NAMED_PARTITIONS:
        which = f"rows of {len(names)} partitions" if names else "rows"
    else:
        listed = ", ".join(names[:-1])
        which = f"partitions {listed} and {names[-1]}" if listed else f"partition {names[-1]}"
    return f"{which} of feed {feed} ({rows:,} rows)"


class FeedProgress:
    """What is known of the progress of one feed, and which process waits for which."""

    def __init__(self, request: FeedRequest, roster: Roster, scheduler: StepScheduler) -> None:
        self._request = request
        self._roster = roster
        self._scheduler = scheduler
        self._received: dict[int, int] = {}  # rows, by node, including those of attempts that will not count
        self._consumed: dict[int, int] = {}  # rows, by node
        self._reading: set[int] = set()  # nodes whose programs have begun to take rows as they arrive

    def take(self, node: Node, message: Any) -> None:
        """Note what a node reports."""
        match message:
            case RowsReceived():
                self._received[node.number] = message.rows
            case RowsConsumed():
                self._consumed[node.number] = message.rows
            case StreamOpened():
                self._reading.add(node.number)

    def state(self) -> Hashable:
        """Return a value that changes with any progress of a node."""
        programs = tuple((node.feed.wanted, node.program.returned, node.program.serving) for node in self._roster.nodes)
        received, consumed = self._received.copy(), self._consumed.copy()  # messages of nodes change them meanwhile
        return tuple(received.items()), tuple(consumed.items()), programs

    def describe(self, tasks: tuple[int, int, int] | None) -> str:
        """Return which process waits for which; `tasks` of the feeding job, if there is one, are done, run, and all."""
        parts = []
        if tasks is not None:
            done, running, total = tasks
            parts.append(f"of the feeding job's tasks {done} of {total} are done and {running} are running")
        for node in self._roster.fed():
            received = f"{node.role} on {node.host} has received {self._rows(node):,} {self._request.unit}"
            if not self._request.starts_early:
                took = " and waits for the rest"
            elif node.number not in self._reading:
                took = f", and its program has not begun to read them ({self._request.read_with})"
            else:
                took = f", of which its program has taken {self._consumed.get(node.number, 0):,}"
            parts.append(received + took)
        text = "; ".join(parts) + ". Look at the job in Spark's UI and at the nodes' output, or raise timeout"
        return text + self._advice()

    def _rows(self, node: Node) -> int:
        """Return how many rows have reached a node, as far as the driver knows."""
        return max(self._received.get(node.number, 0), self._scheduler.rows.get(node.number, 0))

    def _advice(self) -> str:
        """Return which workers have run out of rows, if the others may wait for them in a step."""
        fed = self._roster.fed()
        dry = [str(each.role) for each in fed if self._rows(each) <= self._consumed.get(each.number, 0)]
        if not self._request.starts_early or self._scheduler.shared or not 0 < len(dry) < len(fed):
            return ""
        return (
            f". {', '.join(dry)} has no rows left: if the workers train in step, the others wait for it; let all take "
            "as many steps and call terminate() then, or use ctx.dataset, whose steps are even"
        )


class ProgressTimeout:
    """A time-out that counts from the last progress.

    Any change of what `progress` returns is progress; `describe` returns which process waits for which, for the error.

    Examples
    --------
    >>> timeout = ProgressTimeout(0.01, progress=lambda: (5, 3), describe=lambda: "worker:0 has taken 3 of 5 rows")
    >>> time.sleep(0.02)
    >>> timeout.check()
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.FeedError: the feed has made no progress for 0.01 s (timeout): worker:0 has taken 3 of 5 \
rows
    """

    def __init__(self, seconds: float, progress: Callable[[], Hashable], describe: Callable[[], str]) -> None:
        self._seconds = check_seconds("timeout", seconds)
        self._progress = progress
        self._describe = describe
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._last = self._progress()
        self._since = time.monotonic()

    def check(self) -> None:
        """Raise `FeedError` if there has been no progress for too long."""
        now = self._progress()
        if now != self._last:
            self._last, self._since = now, time.monotonic()
        elif time.monotonic() - self._since > self._seconds:
            raise FeedError(f"the feed has made no progress for {self._seconds:g} s (timeout): {self._describe()}")
