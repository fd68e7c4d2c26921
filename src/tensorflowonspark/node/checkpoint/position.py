"""The position of a program in its feeds, which a checkpoint records and a restarted program resumes."""

import logging
from collections.abc import Callable
from pathlib import Path

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.messages import CheckpointSaved
from tensorflowonspark.node.checkpoint.evaluator_state import EvaluatorState
from tensorflowonspark.node.checkpoint.store import SavedCheckpoint
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.feeds import Feeds
from tensorflowonspark.node.feed.taken import TakenRows

_log = logging.getLogger(__name__)
_ROWS = "rows.json"  # a file of a checkpoint


class ResumePosition:
    """The position of a node's program in its feeds.

    `workers` are all nodes that train, including a chief; `evaluator` is what is known of the evaluator.
    """

    def __init__(self, feeds: Feeds, link: Link, workers: int, evaluator: EvaluatorState | None = None) -> None:
        self.evaluator = evaluator
        self._feeds = feeds
        self._link = link
        self._workers = workers
        self._restored: tuple[SavedCheckpoint, TakenRows | None] | None = None

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

    def write(self, local: str, step: int, epoch: int, batch: int) -> None:
        """Write which rows the steps of an epoch have taken to a checkpoint's local directory, if they are known.

        A program that counts neither epochs nor their steps (`batch`) counts all steps.
        """
        taken = self._feeds.taken(step, batch) if batch or not epoch else None
        if taken is not None:
            Path(local, _ROWS).write_text(taken.text)

    def read(self, local: str, saved: SavedCheckpoint) -> None:
        """Note what a checkpoint that is restored says of the rows, for passes that resume there."""
        path = Path(local, _ROWS)
        self._restored = saved, TakenRows.parse(path.read_text()) if path.exists() else None
        self._feeds.taken_before = self._taken_before

    def _taken_before(self, step: int) -> TakenRows | None:
        """Return the rows that a program's steps have taken of an epoch, if the restored checkpoint has them."""
        assert self._restored is not None
        saved, taken = self._restored
        if saved.step != step or saved.feed != self._feeds.current:
            return None
        if reason := self._difference(saved, taken):
            _log.warning("%s: rows of the epoch of step %d may come twice, or not at all", reason, step)
            return None
        return taken

    def saved_here(self, directory: str) -> Callable[[SavedCheckpoint], None]:
        """Return what reports that a checkpoint of this moment is complete, after which no earlier feed is needed."""
        position = self._feeds.current, directory, self._link.saves.notice.number

        def report(saved: SavedCheckpoint) -> None:
            self._link.send(CheckpointSaved(*position, saved.name, 0 if saved.batch else saved.epoch))

        return report

    def is_save_due(self) -> bool:
        """Count a step that the program has ended; return whether all workers save after it, as a host goes."""
        return self._link.is_save_due()

    def first_feed(self, directory: str) -> int:
        """Return the number of the first feed of a restart that continues a checkpoint of a directory; 0 of others."""
        return self._feeds.first if directory in self._feeds.saved_to else 0

    def require_fed(self, saved: SavedCheckpoint) -> None:
        """Raise `CheckpointError` if this restart feeds a program, which counts no feeds, more than what is left."""
        if self._feeds.saved_to and saved.feed > self._feeds.current:
            raise CheckpointError(
                f"{saved.name} was written in feed {saved.feed}, and this restart begins with feed "
                f"{self._feeds.first}, since the last checkpoint in another directory is of that one "
                f"({', '.join(self._feeds.saved_to)}): save what belongs to one training in one directory"
            )

    def is_fed_again(self, saved: SavedCheckpoint) -> bool:
        """Return whether the rows after a checkpoint are fed to this attempt of the program."""
        return saved.feed >= self._feeds.first

    def resume(self, saved: SavedCheckpoint) -> tuple[int, int] | None:
        """Resume the rows where a checkpoint was written; return the epoch, and the step in it.

        None is left of a feed that was complete before the checkpoint's; then None is returned. Other workers take the
        rows of the epoch that are left in its last steps. If the rows are others, or can't be resumed within an epoch,
        the epoch is repeated.
        """
        if saved.feed > self._feeds.current:
            _log.info("%s is of feed %d: feed %d was complete", saved.name, saved.feed, self._feeds.current)
            return None
        if saved.feed < self._feeds.current:
            return 0, 0  # its feed was complete
        batch = saved.batch
        taken = self._restored[1] if self._restored else None
        reason = self._difference(saved, taken) if batch else ""
        if batch and not reason and taken is not None:
            place = self._feeds.resume_from(taken)
            if place is not None:
                if place[0] > saved.epoch:
                    text = "%s has all steps of epoch %d, and not what follows at its end: epoch %d begins"
                    _log.warning(text, saved.name, saved.epoch + 1, saved.epoch + 2)
                return place
            reason = f"{saved.name} does not say which of the rows are left"
            if made := "".join(each.made for each in taken.spans):  # such an epoch has one span
                reason = f"{saved.name} was written with {made} of rows that the workers do not have now"
        if reason:
            _log.warning("%s: epoch %d begins again, of which %d steps were taken", reason, saved.epoch + 1, batch)
            batch = 0
        if self._feeds.resume_at(saved.epoch, batch):
            return saved.epoch, batch
        return saved.epoch, 0

    def _difference(self, saved: SavedCheckpoint, taken: TakenRows | None) -> str:
        """Return why the steps of a checkpoint had other rows than they would have now; "" if they had not."""
        if taken is None and saved.workers not in (0, self._workers):
            return f"{saved.name} was written by {saved.workers} workers, and there are {self._workers} now"
        rows = taken.fingerprint if taken else saved.rows
        if rows and rows != self._feeds.fingerprint:
            return f"{saved.name} was written with other rows, or the same in other partitions or another order"
        return ""
