"""Liveness of a node's process: computing, waiting for a valid reason, stopped, or hung.

Signs of activity are processor time, a thread that waits for a processor or a disk, and wake-ups of the main thread. A
process that is stopped, or whose threads all wait for each other, closes no connection. A process that waits for a
valid reason (rows, a file system, the end of its cluster, a peer that computes) shows no activity either. The monitor
therefore requests its status, and the driver, which knows all nodes, decides. Native code that holds Python's lock
prevents a reply, and TensorFlow holds it while it waits for its peers to come up: a missing reply proves nothing. Only
a stopped process is a failure by itself. A process that is active is never asked.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Active, Failed, Idle, NodeStatus, NodeUsage
from tensorflowonspark.supervisor.usage import UsageMeter

# A TensorFlow that waits in a collective, or threads that wait for Python's lock, use a smaller share of one core. The
# kernel's unit is a hundredth of a second.
_IDLE_SHARE = 0.03
_IDLE_SECONDS = 0.05
_REQUEST_SHARE = 0.7  # of the time-out, after which the status of an idle process is requested
_CHECKS = 10  # within the time-out
# A process is active if one of its threads has or wants a processor for this share of the time between two checks: an
# overloaded host may give it hardly any. Threads that wait for Python's lock wake up 200 times a second, and want one
# for a smaller share.
_WANTED_SHARE = 0.8
_DISK_CHECKS = 3  # consecutive ones that find a thread waiting for a disk until the process counts as active


class LivenessMonitor:
    """Monitors the process of a node.

    A process without activity for so many seconds is reported. `request` requests the status of the node, which is
    passed to `receive`.
    """

    def __init__(self, pid: int, timeout: float, request: Callable[[], None], gpus: Sequence[str] = ()) -> None:
        self.usage: NodeUsage | None = None  # of the process and its descendants at the last check
        self._meter = UsageMeter(pid, gpus)
        self._pid = pid
        self._timeout = timeout
        self._request = request
        self._checked = self._idle_since = time.monotonic()
        self._used = 0.0  # processor time when it became idle
        self._wakeups = 0  # of its main thread, then
        self._requested = False
        self._status: NodeStatus | None = None
        self._reported: Idle | None = None
        self._stopped_since: float | None = None
        self._threads: dict[str, _Thread] = {}  # at the last check, by their ids
        self._disk_checks = 0  # consecutive ones that found a thread waiting for a disk

    @property
    def interval(self) -> float:
        """Seconds between checks."""
        return self._timeout / _CHECKS

    def receive(self, status: NodeStatus) -> None:
        """Record the status of the node."""
        self._status = status

    def check(self) -> Failed | Idle | Active | None:
        """Return a change: the process is idle (with its status, if it has replied), stopped, or active again."""
        now = time.monotonic()
        passed = now - self._checked
        if passed < self.interval:
            return None
        self._checked = now
        # What nobody has looked at does not count: this process had no processor either, or was stopped.
        self._idle_since += max(0.0, passed - 2 * self.interval)
        stopped = self.stopped()
        if stopped is not None:
            return self._check_stopped(stopped, now)
        self._stopped_since = None
        self.usage = self._meter.measure()
        used, wakeups = self.usage.processor, self._count_wakeups()
        allowed = _IDLE_SECONDS + _IDLE_SHARE * (now - self._idle_since)
        if wakeups != self._wakeups or not 0 <= used - self._used < allowed or self._has_active_thread(passed):
            self._used, self._wakeups = used, wakeups
            return self._on_activity(now)
        idle = now - self._idle_since
        if not self._requested and idle > self._timeout * _REQUEST_SHARE:
            self._requested, self._status = True, None
            self._request()
        if (
            idle < self._timeout
            or self._disk_checks
            or (self._reported is not None and self._reported.where is self._status)
        ):
            return None
        self._reported = Idle(idle, self._status)
        return self._reported

    def _check_stopped(self, stopped: Failed, now: float) -> Failed | None:
        """Return the failure, once, of a process that has been stopped for the whole time-out."""
        if self._stopped_since is None:
            self._stopped_since = now
        if now - self._stopped_since < self._timeout:
            return None
        self._stopped_since = math.inf
        return stopped

    def stopped(self) -> Failed | None:
        """Return the failure of a process that is stopped now, else None."""
        try:
            status = psutil.Process(self._pid).status()
        except psutil.NoSuchProcess:
            return None
        if status not in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return None
        reason = f"its process {self._pid} is stopped (SIGSTOP, or a debugger)"
        return Failed(FailureKind.STOPPED, reason, "see who stopped it; to allow more time, raise heartbeat_timeout")

    def _count_wakeups(self) -> int:
        """Return the number of voluntary context switches of the main thread (on Linux; 0 elsewhere)."""
        try:
            return int(psutil.Process(self._pid).num_ctx_switches().voluntary) if psutil.LINUX else 0
        except psutil.NoSuchProcess:
            return 0

    def _has_active_thread(self, passed: float) -> bool:
        """Return whether a thread has wanted a processor since the last check, or waits for a disk for several."""
        before, self._threads = self._threads, _Thread.all_of(self._pid)
        waits_for_disk = any(thread.state == "D" for thread in self._threads.values())
        self._disk_checks = self._disk_checks + 1 if waits_for_disk else 0
        return self._disk_checks >= _DISK_CHECKS or any(
            thread.wanted_processor(before.get(number), passed) for number, thread in self._threads.items()
        )

    def _on_activity(self, now: float) -> Active | None:
        reported, self._reported = self._reported, None
        self._idle_since, self._requested = now, False
        self._threads = {}  # those of a busy process are not read
        return Active() if reported else None


@dataclass(frozen=True)
class _Thread:
    """A thread of a process (on Linux).

    Sources: man 5 proc_pid_stat; Documentation/scheduler/sched-stats.rst of Linux.
    """

    state: str  # "R": it runs or waits for a processor; "D": it waits for a disk
    seconds: float  # that it has run, or waited for a processor until it ran
    runs: int  # how often it was given a processor

    @classmethod
    def all_of(cls, pid: int) -> "dict[str, _Thread]":
        """Return the threads of a process by their ids; none of one that has ended."""
        threads = {}
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError, ValueError):  # the thread has ended
                running, waiting, runs = map(int, path.read_text().split())
                state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
                threads[path.parent.name] = cls(state, (running + waiting) / 1e9, runs)
        return threads

    def wanted_processor(self, before: "_Thread | None", seconds: float) -> bool:
        """Return whether it ran or waited for a processor for most of the seconds since it was looked at `before`."""
        if before is None:
            return False
        waits_still = before.state == self.state == "R" and before.runs == self.runs
        return waits_still or self.seconds - before.seconds > _WANTED_SHARE * seconds
