"""What the main thread of a node does: the messages that the program waits for, or else its stack."""

import math
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tensorflowonspark.messages import NodeStatus, WaitsFor

_TENSORFLOW = str(Path("tensorflow", "python"))
_JAX = (str(Path("jax", "_src")), str(Path("jax", "experimental")))
_PACKAGE = str(Path(__file__).parents[1])
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_CHECKPOINTS = str(Path("tensorflowonspark", "node", "checkpoint", "writer.py"))  # where a program waits for a store
_FILE_SYSTEMS = (str(Path("tensorflowonspark", "storage")), f"{Path('fsspec')}/", _CHECKPOINTS)
_T = TypeVar("_T")


class ProgramWaits:
    """The program's waits for messages; `changed` is the lock of all that they bring, and wakes it after each one.

    `require_own_process` raises in a forked child, to which no message comes.
    """

    def __init__(self, require_own_process: Callable[[], None]) -> None:
        self._require_own_process = require_own_process
        self._waits: list[WaitsFor] = []
        self.in_epoch = False  # the program has taken some of an epoch's batches, but not all
        self.renew_lock()

    def renew_lock(self) -> None:
        """Make a new lock: a forked child lacks the thread that held one at the fork."""
        self.changed = threading.Condition()

    def until(self, find: Callable[[], _T | None], what: WaitsFor = WaitsFor.FEED) -> _T:
        """Wait until something is found that is not None; return it."""
        found = self.at_most(None, find, what)
        assert found is not None
        return found

    def at_most(
        self, seconds: float | None, find: Callable[[], _T | None], what: WaitsFor = WaitsFor.FEED
    ) -> _T | None:
        """Do the same for at most some seconds, if they are given; return None if it is not found."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        self._waits.append(what)
        try:
            with self.changed:
                while (found := find()) is None and (rest := end - time.monotonic()) > 0:
                    self._require_own_process()
                    self.changed.wait(None if rest == math.inf else rest)
                return found
        finally:
            self._waits.remove(what)

    def status(self) -> NodeStatus:
        """Return what the main thread does, seen from another one."""
        waits = max(self._waits, key=lambda each: each.value, default=WaitsFor.NOTHING)
        return _node_status(waits, self.in_epoch)


def _node_status(waits_for: WaitsFor, in_epoch: bool) -> NodeStatus:
    """Return what the main thread does: it waits for this, or what its stack shows."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.extract_stack(frame) if frame is not None else traceback.StackSummary()
    # TensorFlow runs eager collectives in a pool of threads, for which it waits in functions of the standard library.
    waiting = next((each.filename for each in reversed(stack) if not _is_standard(each.filename)), "")
    in_tensorflow = _TENSORFLOW in waiting or any(part in waiting for part in _JAX)
    first = next((at for at, each in enumerate(stack) if _is_user_code(each.filename)), 0)
    if any(part in each.filename for each in stack for part in _FILE_SYSTEMS):
        waits_for = WaitsFor.STORAGE
    return NodeStatus(waits_for, in_tensorflow, in_epoch, "".join(traceback.format_list(stack[first:])))


def _is_standard(filename: str) -> bool:
    return filename.startswith((_STANDARD_LIBRARY, "<frozen")) and "-packages" not in filename


def _is_user_code(filename: str) -> bool:
    return not (filename.startswith((_PACKAGE, "<frozen")))
