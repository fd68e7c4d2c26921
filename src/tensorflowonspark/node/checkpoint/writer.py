"""Checkpoints are written one after another: while the program waits, or in a thread beside it."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tensorflowonspark.errors import CheckpointError, SpecError
from tensorflowonspark.node.checkpoint.best import BestMetric

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
    wait: bool = True
    max_failures: int = 3
    copies: int = 0

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise SpecError(f"keep={self.keep}: at least one checkpoint must be kept")
        if self.max_failures < 0:
            raise SpecError(f"max_failures={self.max_failures}: expected a number of checkpoints, from 0 on")
        if not isinstance(self.copies, int) or self.copies < 0:
            raise SpecError(f"copies={self.copies!r}: expected a number of other hosts with copies, from 0 on")


class Writer:
    """Writes the copies of a training's checkpoints, one at a time.

    What could not be written beside the program, or with `may_fail`, is a warning, and the checkpoint before stays the
    newest; an error once more than `max_failures` have failed in a row, or if the last one has.
    """

    def __init__(self, directory: str, max_failures: int, may_fail: bool = False) -> None:
        self._directory = directory
        self._max_failures = max_failures
        self._may_fail = may_fail
        self._failures = 0  # in a row
        self._error: Exception | None = None  # of the last one
        self._running: Future[Any] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._warned = False

    def write(self, copy: Callable[[], _Result], what: str, at_once: bool) -> _Result | None:
        """Have `copy` write `what`, and return its result; unless `at_once` in another thread, and return None."""
        self.settle()
        if at_once and self._may_fail:
            result = self._copy(copy, what)
            self.settle()
            return result
        if at_once:
            return copy()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running = self._threads.submit(self._copy, copy, what)
        return None

    def problem(self) -> str:
        """Wait until nothing is under way; return why the last one could not be written, or ""."""
        self._wait()
        return "" if self._error is None else str(self._error)

    def settle(self) -> None:
        """Wait until nothing is under way; raise `CheckpointError` if too many have failed in a row."""
        self._wait()
        if self._error is not None and self._failures > self._max_failures:
            raise self._as_error(self._error)

    def close(self) -> None:
        """Wait until nothing is under way; raise `CheckpointError` if the last one could not be written."""
        self._wait()
        if self._threads is not None:
            self._threads.shutdown()
        if self._error is not None:
            raise self._as_error(self._error)

    def _as_error(self, error: Exception) -> CheckpointError:
        return error if isinstance(error, CheckpointError) else CheckpointError(f"{type(error).__name__}: {error}")

    def _wait(self) -> None:
        if self._running is None:
            return
        begun = time.monotonic()
        self._running.result()
        self._running = None
        seconds = time.monotonic() - begun
        if seconds > _SLOW_SECONDS and not self._warned:
            self._warned = True
            text = "training waited %.1f s for its last checkpoint: they come faster than %s takes them"
            _log.warning(text, seconds, self._directory)

    def _copy(self, copy: Callable[[], _Result], what: str) -> _Result | None:
        try:
            result = copy()
        except Exception as error:  # each file system raises other types
            self._failures += 1
            self._error = error
            text = "%s was not written, and the one before stays the newest (%d in a row; an error after %d): %s"
            _log.warning(text, what, self._failures, self._max_failures, error)
            return None
        self._failures = 0
        self._error = None
        return result
