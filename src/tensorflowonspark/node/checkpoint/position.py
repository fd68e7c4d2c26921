"""The position of a program in its feeds, which a checkpoint records and a restarted program resumes."""

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.messages import CheckpointSaved
from tensorflowonspark.node.checkpoint.store import SavedCheckpoint
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.feeds import Feeds

__all__ = ["ResumePosition"]


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
        return {"batch": batch, "feed": self._feeds.current, "workers": self._workers}

    def report_saved(self) -> None:
        """Report that a checkpoint is complete: a restarted program needs no earlier feed."""
        self._link.send(CheckpointSaved(self._feeds.current))

    def is_fed_again(self, saved: SavedCheckpoint) -> bool:
        """Return whether the rows after a checkpoint are fed to this attempt of the program."""
        return not self._feeds.first or saved.feed >= self._feeds.first

    def resume(self, saved: SavedCheckpoint) -> tuple[int, int]:
        """Resume the rows where a checkpoint was written; return its epoch, and the step in it.

        The rows of a step depend on the number of workers. With another number, or with rows that can't be resumed
        within an epoch, the epoch is repeated.
        """
        if saved.feed < self._feeds.current:
            return 0, 0  # its feed was complete
        same = saved.feed == self._feeds.current and saved.workers in (0, self._workers)
        batch = saved.batch if same else 0
        if self._feeds.resume_at(saved.epoch, batch):
            return saved.epoch, batch
        return saved.epoch, 0
