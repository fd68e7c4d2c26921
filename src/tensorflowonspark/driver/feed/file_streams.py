"""The first epoch over files whose rows only reading them shows: steps as rows are read, and then the counts."""

from collections.abc import Callable, Sequence

from tensorflowonspark.driver.feed.scheduler import StepScheduler
from tensorflowonspark.feed_messages import (
    FeedReport,
    FilesCounted,
    RowsCounted,
)

__all__ = ["FileStream"]


class FileStream:
    """The files of one call that the workers read in each epoch.

    Each worker reads its own share, so every row that it reports counts. A worker reads ahead as far as its memory
    allows, whatever the others do, so no step needs padding before the worker with fewer rows has taken all of them.

    Parameters
    ----------
    feed : int
        The feed's number.
    workers : sequence of int
        The nodes that read.
    send : callable
        Takes a node's number and a message for it.
    """

    def __init__(self, feed: int, workers: Sequence[int], send: Callable[[int, object], None]) -> None:
        self._feed = feed
        self._send = send
        self._scheduler = StepScheduler(workers, feed)
        self._counts = dict.fromkeys(workers, 0)
        self._counted = False

    def receive(self, number: int, message: FeedReport) -> None:
        """Note what a worker reports; send all of them the steps and the counts that become known by it."""
        self._scheduler.receive(number, message)
        if isinstance(message, FilesCounted):
            self._counts[number] = message.rows
        self._update()

    def leave(self, number: int) -> None:
        """Note that a worker's program has returned: no other one waits for its rows or their count."""
        self._scheduler.leave(number)
        self._update()

    def _update(self) -> None:
        if not self._scheduler.finished and self._scheduler.all_received:
            self._scheduler.finish()
        if not self._counted and self._scheduler.all_counted:
            self._counted = True  # sent before the last steps: the counts are known when a pass ends
            for number in [number for number in self._counts if number in self._scheduler]:
                self._send(number, RowsCounted(self._feed, dict(self._counts)))
        for number, grant in self._scheduler.grants().items():
            self._send(number, grant)
