"""The position of a program in its feeds, which a checkpoint records and a restarted program resumes."""

import logging

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.messages import CheckpointSaved
from tensorflowonspark.node.checkpoint.store import SavedCheckpoint
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.feeds import Feeds

__all__ = ["ResumePosition"]

_log = logging.getLogger(__name__)


class ResumePosition:
    """The position of a node's program in its feeds.

    Parameters
    ----------
    feeds : Feeds
        The node's feeds.
    link : Link
        To the driver.
    workers : int
        Number of nodes that train, including a chief.
    """

    def __init__(self, feeds: Feeds, link: Link, workers: int) -> None:
        self._feeds = feeds
        self._link = link
        self._workers = workers

    @property
    def in_first_pass(self) -> bool:
        """Whether the program is in the first epoch of a feed, and takes the rows as they arrive."""
        return self._feeds.arriving is not None

    def require_resumable(self) -> None:
        """Raise `CheckpointError` if the rows can't be resumed here, since they come in the order of their arrival."""
        arriving = self._feeds.arriving
        if arriving is not None and not arriving.all_taken:
            raise CheckpointError(
                f"feed {self._feeds.current} began with its first rows (start='first_rows'): its first epoch can't be "
                "resumed, so save after that epoch, or feed with start='all_rows'"
            )

    def describe(self, batch: int) -> dict[str, int]:
        """Return the position that a checkpoint records, after `batch` steps of an epoch."""
        position = {"batch": batch, "feed": self._feeds.current, "workers": self._workers}
        return {**position, "rows": self._feeds.fingerprint} if batch else position

    def report_saved(self) -> None:
        """Report that a checkpoint is complete: a restarted program needs no earlier feed."""
        self._link.send(CheckpointSaved(self._feeds.current))

    def is_fed_again(self, saved: SavedCheckpoint) -> bool:
        """Return whether the rows after a checkpoint are fed to this attempt of the program."""
        return not self._feeds.first or saved.feed >= self._feeds.first

    def resume(self, saved: SavedCheckpoint) -> tuple[int, int]:
        """Resume the rows where a checkpoint was written; return its epoch, and the step in it.

        The rows of a step depend on the number of workers, and on Spark's partitions. If these are others, or the rows
        can't be resumed within an epoch, the epoch is repeated.
        """
        if saved.feed < self._feeds.current:
            return 0, 0  # its feed was complete
        batch = saved.batch if saved.feed == self._feeds.current else 0
        if batch and (reason := self._difference(saved)):
            _log.warning("%s: epoch %d begins again, of which %d steps were taken", reason, saved.epoch + 1, batch)
            batch = 0
        if self._feeds.resume_at(saved.epoch, batch):
            return saved.epoch, batch
        return saved.epoch, 0

    def _difference(self, saved: SavedCheckpoint) -> str:
        """Return why the steps of a checkpoint had other rows than they would have now; "" if they had not."""
        if saved.workers not in (0, self._workers):
            return f"{saved.name} was written by {saved.workers} workers, and there are {self._workers} now"
        if saved.rows and saved.rows != self._feeds.fingerprint:
            return f"{saved.name} was written with other rows, or the same in other partitions or another order"
        return ""
