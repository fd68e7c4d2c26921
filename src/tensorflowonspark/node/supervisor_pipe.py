"""The pipe of a node to its supervisor: one message after the other, and what it means that none comes any more."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any

from tensorflowonspark.config import HEARTBEATS_PER_TIMEOUT
from tensorflowonspark.errors import ClusterError
from tensorflowonspark.messages import FrameworkImported, KerasImported, RunDescribed, TrainingTotals
from tensorflowonspark.processes import PIPE_CLOSED_EXIT, kill_group
from tensorflowonspark.transport import seal

_REPORTS = (KerasImported, FrameworkImported, RunDescribed, TrainingTotals)
_ORPHAN_GUARD_SECONDS = 1.0  # for the orphan guard to end this process and to remove its private directory


class SupervisorPipe:
    """Sends and receives; at its end the process group is killed."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._owner = os.getpid()
        self._socket = _identity(pipe)
        self._received = 0  # messages
        self.renew_lock()

    def renew_lock(self) -> None:
        """Make a new lock: a forked child lacks the thread that held one at the fork."""
        self._sending = Lock()

    def start(self, take: Callable[[Any], None]) -> None:
        """Begin to receive; `take` is called with each message, in a thread of its own."""
        Thread(target=self._receive, args=(take,), daemon=True).start()

    def require_own_process(self) -> None:
        """Raise `ClusterError` in a forked child of the node."""
        if os.getpid() != self._owner:
            raise ClusterError(
                f"process {os.getpid()} is a forked child of the node's process {self._owner}, which alone has a "
                "connection to the cluster: call ctx there, and pass the results to the child"
            )

    def send(self, message: object) -> None:
        """Send a message; see `Link.send`."""
        if os.getpid() != self._owner and isinstance(message, _REPORTS):
            return
        self.require_own_process()
        with self._sending, suppress(OSError):  # if the supervisor has ended, this process ends too
            self._pipe.send(seal(message))

    def watch(self, supervisor_pid: int, heartbeat_timeout: float) -> None:
        """Kill a supervisor that sends no heartbeat because it is stopped; this process ends with it.

        The driver has given up both by then, and may have started replacements.
        """
        interval = heartbeat_timeout / HEARTBEATS_PER_TIMEOUT
        Thread(target=self._watch, args=(supervisor_pid, interval), daemon=True).start()

    def _watch(self, supervisor_pid: int, interval: float) -> None:
        missed, received = 0, self._received
        # Intervals are counted, not time: after this process itself was stopped, heartbeats wait in the pipe.
        while missed <= HEARTBEATS_PER_TIMEOUT:
            time.sleep(interval)
            missed, received = (missed + 1 if received == self._received else 0), self._received
        with suppress(ProcessLookupError):
            os.kill(supervisor_pid, signal.SIGKILL)

    def _receive(self, take: Callable[[Any], None]) -> None:
        with suppress(Exception):  # whatever is read if the program has closed the pipe and opened another file
            while True:
                message = self._pipe.recv()
                self._received += 1
                take(message)
        if _identity(self._pipe) != self._socket:
            os._exit(PIPE_CLOSED_EXIT)
        time.sleep(_ORPHAN_GUARD_SECONDS)
        kill_group(os.getpid())


def _identity(pipe: Connection) -> tuple[int, int] | None:
    """Return the identity of the pipe's file, or None if it is closed."""
    try:
        found = os.fstat(pipe.fileno())
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
