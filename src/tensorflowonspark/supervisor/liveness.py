"""Liveness of a node's process: whether it computes, waits with reason, is stopped or hangs.

Signs of life are processor time, a thread that would use some if it got it, and a main thread that wakes up. A process
that is stopped, or whose threads all wait for each other, closes no connection. One that waits with good reason (for
rows, for a file system, for its cluster's end, for a peer that computes) gives no signs either: so it is asked where it
is, and the driver, who sees all nodes, judges. Native code that holds Python's lock keeps a process from answering, and
TensorFlow does so while it waits for its peers to come up: so no answer proves nothing either. Only a process that is
stopped is a failure by itself. Nothing is asked of one that is busy.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Active, Failed, Idle, NodeStatus

__all__ = ["LivenessMonitor"]

# A TensorFlow that waits in a collective, or threads that wait for Python's lock, use less than that of one core; the
# kernel counts in hundredths of a second.
_IDLE_SHARE = 0.03
_IDLE_SECONDS = 0.05
_ASKED_AFTER = 0.7  # of the time that a process may be idle
_LOOKS = 10  # in that time
# In a row, at which a thread wants the processor, until the process counts as busy: one that wakes up now and then, as
# some of TensorFlow's do while nothing moves, is found waiting for its turn too, on a host that is overloaded.
_LOOKS_WANTING = 3


class LivenessMonitor:
    """Looks after one node's process.

    Parameters
    ----------
    pid : int
        The process.
    patience : float
        Seconds without a sign of life after which it is given up.
    ask : callable
        Asks the node where it is; it answers with `answered`.
    """

    def __init__(self, pid: int, patience: float, ask: Callable[[], None]) -> None:
        self._pid = pid
        self._patience = patience
        self._ask = ask
        self._looked = self._idle_since = time.monotonic()
        self._used = 0.0  # processor time, until it became idle
        self._awoken = 0  # how often its main thread has been, until then
        self._asked = False
        self._where: NodeStatus | None = None
        self._told: Idle | None = None
        self._stopped_since: float | None = None
        self._wanting = 0  # at how many looks in a row a thread wanted the processor

    @property
    def interval(self) -> float:
        """Seconds from one look to the next."""
        return self._patience / _LOOKS

    def receive(self, where: NodeStatus) -> None:
        """Take the node's answer."""
        self._where = where

    def check(self) -> Failed | Idle | Active | None:
        """Return what has changed: it is idle (with its answer, if it has given one), stopped, or goes on."""
        now = time.monotonic()
        if now - self._looked < self.interval:
            return None
        self._looked = now
        stopped = self.stopped()
        if stopped is not None:
            return self._judge_stopped(stopped, now)
        self._stopped_since = None
        used, awoken = self._time_used(), self._wakings()
        allowed = _IDLE_SECONDS + _IDLE_SHARE * (now - self._idle_since)
        self._wanting = self._wanting + 1 if _wants_processor(self._pid) else 0
        if awoken != self._awoken or not 0 <= used - self._used < allowed or self._wanting >= _LOOKS_WANTING:
            self._used, self._awoken = used, awoken
            return self._revived(now)
        idle = now - self._idle_since
        if not self._asked and idle > self._patience * _ASKED_AFTER:
            self._asked, self._where = True, None
            self._ask()
        if idle < self._patience or self._wanting or (self._told is not None and self._told.where is self._where):
            return None
        self._told = Idle(idle, self._where)
        return self._told

    def _judge_stopped(self, stopped: Failed, now: float) -> Failed | None:
        """Return the failure, once, of a process that has been stopped for the whole time: a debugger takes less."""
        if self._stopped_since is None:
            self._stopped_since = now
        if now - self._stopped_since < self._patience:
            return None
        self._stopped_since = math.inf
        return stopped

    def stopped(self) -> Failed | None:
        """Return that the process is stopped, if it is."""
        try:
            status = psutil.Process(self._pid).status()
        except psutil.NoSuchProcess:
            return None
        if status not in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return None
        reason = f"its process {self._pid} is stopped (SIGSTOP, or a debugger)"
        return Failed(FailureKind.STOPPED, reason, "see who stopped it; to give it more time, raise heartbeat_timeout")

    def _time_used(self) -> float:
        """Return the seconds of processor time of the process and all that it has started, as long as these live."""
        total = 0.0
        try:
            leader = psutil.Process(self._pid)
            for process in (leader, *leader.children(recursive=True)):
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            pass
        return total

    def _wakings(self) -> int:
        """Return how often the main thread has waited for something and has gone on (of Linux; 0 elsewhere)."""
        try:
            return int(psutil.Process(self._pid).num_ctx_switches().voluntary) if psutil.LINUX else 0
        except psutil.NoSuchProcess:
            return 0

    def _revived(self, now: float) -> Active | None:
        was_told, self._told = self._told, None
        self._idle_since, self._asked = now, False
        return Active() if was_told else None


def _wants_processor(pid: int) -> bool:
    """Tell whether a thread of a process wants the processor, or waits for a disk (on Linux; elsewhere nobody tells).

    On a host that is overloaded it may get next to nothing. Source: man 5 proc_pid_stat.
    """
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            if path.read_text().rpartition(")")[2].split()[0] in ("R", "D"):
                return True
    return False
