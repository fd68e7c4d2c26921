"""Where a program is in its rows: noted in each checkpoint, and taken up again from one."""

from typing import TYPE_CHECKING

from tensorflowonspark.messages import SavedIn
from tensorflowonspark.node.feeds import Feeds
from tensorflowonspark.node.link import Link

if TYPE_CHECKING:
    from tensorflowonspark.node.saved import Saved

__all__ = ["Position"]


class Position:
    """The place of a node's program in its feeds.

    Parameters
    ----------
    feeds : Feeds
        The node's.
    link : Link
        To the driver.
    workers : int
        How many nodes train.
    """

    def __init__(self, feeds: Feeds, link: Link, workers: int) -> None:
        self._feeds = feeds
        self._link = link
        self._workers = workers

    def noted(self, batch: int) -> dict[str, int]:
        """Return what a checkpoint says of the place, so many steps into an epoch."""
        return {"batch": batch, "feed": self._feeds.current, "workers": self._workers}

    def tell(self) -> None:
        """Say that a checkpoint is complete: what was fed before, a program that begins again does not need."""
        self._link.send(SavedIn(self._feeds.current))

    def comes_again(self, saved: "Saved") -> bool:
        """Return whether the rows that came after a checkpoint are fed (again) to the program that begins now."""
        return not self._feeds.first or saved.feed >= self._feeds.first

    def find(self, saved: "Saved") -> tuple[int, int]:
        """Go to where a checkpoint was written; return its epoch, and the step in it.

        The rows of a step depend on how many workers there are: with another number, or without rows that can be taken
        up in their midst, the epoch begins again.
        """
        if saved.feed < self._feeds.current:
            return 0, 0  # its feed was complete
        same = saved.feed == self._feeds.current and saved.workers in (0, self._workers)
        batch = saved.batch if same else 0
        if self._feeds.begin_at(saved.epoch, batch):
            return saved.epoch, batch
        return saved.epoch, 0
