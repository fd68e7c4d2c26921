"""Checkpoints are written one after another, in a thread beside the program, which may wait for it."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tensorflowonspark.errors import CheckpointError, SpecError
from tensorflowonspark.node.checkpoint.best import BestMetric
from tensorflowonspark.node.checkpoint.copies import Copies
from tensorflowonspark.node.checkpoint.evaluator_state import place_of

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_SLOW_SECONDS = 1.0  # that the program waits for the checkpoint before: a store this slow is worth a line


@dataclass(frozen=True)
class SavePolicy:
    """Which checkpoints of a training are kept, whether its program waits for each, and on how many hosts are copies.

    Of checkpoints that are written beside the program, or that have copies, `max_failures` in a row may fail.
    """

    keep: int = 3
    best: BestMetric = field(default_factory=BestMetric)
    wait: bool = False
    max_failures: int = 3
    copies: int = 0

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise SpecError(f"keep={self.keep}: at least one checkpoint must be kept")
        if self.max_failures < 0:
            raise SpecError(f"max_failures={self.max_failures}: expected a number of checkpoints, from 0 on")
        if not isinstance(self.copies, int) or self.copies < 0:
            raise SpecError(f"copies={self.copies!r}: expected a number of other hosts with copies, from 0 on")


class Writers:
    """The writers of one program, one for each directory, whatever its name.

    What they write comes in the order of the program's saves, in one thread.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._found: dict[object, Writer] = {}

    def of(self, directory: str, copies: Copies | None = None) -> "Writer":
        """Return the writer of a directory, whose checkpoints may have copies on as many hosts in all calls."""
        writer = self._found.setdefault(place_of(directory), Writer(directory, self._thread, copies))
        before, now = (0 if each is None else each.hosts for each in (writer.copies, copies))
        if before != now:
            raise SpecError(
                f"ctx.checkpoint({directory!r}, copies={now}): this program has called it with copies={before} for the "
                "directory, and a restart would take an older copy for the newest checkpoint: give both the same number"
            )
        return writer

    def wait(self) -> None:
        """Wait until nothing is under way."""
        for each in self._found.values():
            each.wait()

    def close(self) -> None:
        """Wait until nothing is under way; raise `CheckpointError` if the last one in a directory was not written."""
        self.wait()
        self._thread.shutdown()
        for each in self._found.values():
            each.require_last()


class Writer:
    """Writes the copies of a training's checkpoints, one at a time.

    What could not be written beside the program, or of which there are `copies`, is a warning, and the checkpoint
    before stays the newest; an error once more than `max_failures` have failed in a row, or if the last one has.
    """

    def __init__(self, directory: str, thread: Executor, copies: Copies | None = None) -> None:
        self.copies = copies
        self._directory = directory
        self._thread = thread
        self._failures = 0  # in a row
        self._error: Exception | None = None  # of the last one
        self._running: Future[Any] | None = None
        self._warned = False
        self.is_new = True  # nothing has been written in this program

    def write(self, copy: Callable[[], _Result], what: str, max_failures: int, *, at_once: bool) -> _Result | None:
        """Have `copy` write `what`; return its result if it is to be written `at_once`, and else None, before it is."""
        result: _Result | None
        self.settle(max_failures)
        self.is_new = False
        if at_once and self.copies is None:
            result = self._thread.submit(copy).result()
            self.forget()
            return result
        self._running = self._thread.submit(self._copy, copy, what, max_failures)
        if not at_once:
            return None
        result = self._running.result()
        self.settle(max_failures)
        return result

    def make_room(self, max_failures: int) -> None:
        """Wait until nothing is under way, for the next one, as `settle`; the first long wait is a warning."""
        begun = time.monotonic()
        self.settle(max_failures)
        seconds = time.monotonic() - begun
        if seconds > _SLOW_SECONDS and not self._warned:
            self._warned = True
            text = "training waited %.1f s for its last checkpoint: they come faster than %s takes them"
            _log.warning(text, seconds, self._directory)

    def problem(self) -> str:
        """Wait until nothing is under way; return why the last one could not be written, or ""."""
        self.wait()
        return "" if self._error is None else str(self._error)

    def settle(self, max_failures: int) -> None:
        """Wait until nothing is under way; raise `CheckpointError` if more have failed in a row."""
        self.wait()
        if self._failures > max_failures:
            self.require_last()

    def require_last(self) -> None:
        """Raise `CheckpointError` if the last one could not be written."""
        error = self._error
        if error is not None:
            raise error if isinstance(error, CheckpointError) else CheckpointError(f"{type(error).__name__}: {error}")

    def forget(self) -> None:
        """Note that no checkpoint is wanted any more, also of those that failed."""
        self._failures, self._error = 0, None

    def wait(self) -> None:
        """Wait until nothing is under way."""
        if self._running is not None:
            self._running.result()
            self._running = None

    def _copy(self, copy: Callable[[], _Result], what: str, max_failures: int) -> _Result | None:
        try:
            result = copy()
        except Exception as error:  # each file system raises other types
            self._failures += 1
            self._error = error
            text = "%s was not written, and the one before stays the newest (%d in a row; an error after %d): %s"
            _log.warning(text, what, self._failures, max_failures, error)
            return None
        self._failures = 0
        self._error = None
        return result
