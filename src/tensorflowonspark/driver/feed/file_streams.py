"""The first epoch over files whose rows only reading them shows: steps as rows are read, and then the counts."""

from collections.abc import Callable, Sequence

from tensorflowonspark.driver.feed.scheduler import StepScheduler
from tensorflowonspark.feed_messages import (
    FeedComplete,
    FeedReport,
    FilesCounted,
    RowsReceived,
    SplitManifest,
    StreamOpened,
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
        self._readers = set(workers)  # those whose programs have not returned
        self._counts = dict.fromkeys(workers, 0)
        self._uncounted = set(workers)
        self._finished = self._completed = False

    def receive(self, number: int, message: FeedReport) -> None:
        """Note what a worker reports; send all of them the steps and the counts that become known by it."""
        if isinstance(message, StreamOpened):
            assert message.shares is not None
            self._scheduler.open(number, message.shares)
        elif isinstance(message, RowsReceived):
            self._scheduler.receive(number, message.rows)
        elif isinstance(message, FilesCounted):
            self._scheduler.expect(number, message.rows)
            self._counts[number] = message.rows
            self._uncounted.discard(number)
        self._update()

    def leave(self, number: int) -> None:
        """Note that a worker's program has returned: no other one waits for its rows or their count."""
        self._scheduler.leave(number)
        self._readers.discard(number)
        self._uncounted.discard(number)
        self._update()

    def _update(self) -> None:
        if not self._finished and self._scheduler.all_received:
            self._finished = True
            self._scheduler.finish()
        if not self._completed and not self._uncounted:
            self._completed = True  # sent before the last steps: the counts are known when a pass ends
            for number in self._readers:
                self._send(number, FeedComplete(self._feed, SplitManifest(dict(self._counts)), starts_early=True))
        for number, grant in self._scheduler.grants().items():
            self._send(number, grant)
