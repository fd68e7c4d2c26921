"""What the JVM of a driver writes to standard error: without the lines that each start of Spark has."""

import os
import re
import sys
from threading import Lock, Thread

_AT_EACH_START = re.compile(
    r"WARNING: Using incubator modules: |"
    r"Using Spark's default log4j profile: |"
    r"Setting (default|Spark) log level to |"
    r"To adjust logging level use |"
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN) "  # of Spark's own log
)
_END_SECONDS = 2.0  # for the last lines of a JVM that has ended


class JvmOutput:
    """Passes lines on to this process's standard error, except those of each start, which are kept until it is over.

    The JVM is started in a ``with`` block, at whose end its file is closed here.

    Without `keeps` there are no such lines, and all are passed on.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self._read, self.descriptor = os.pipe()  # the JVM writes to the latter
        self._kept: list[bytes] | None = [] if keeps else None  # None once all lines are passed on
        self._lock = Lock()
        self._thread = Thread(target=self._pass_on, name="output of the JVM", daemon=True)

    def __enter__(self) -> "JvmOutput":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def started(self) -> None:
        """Note that Spark runs: what it writes from now on is passed on."""
        with self._lock:
            self._kept = None

    def failed(self) -> None:
        """Show the lines that were kept, since Spark does not run and its JVM has ended."""
        self._thread.join(_END_SECONDS)
        with self._lock:
            kept, self._kept = self._kept, None
        for line in kept or ():
            _show(line)

    def _pass_on(self) -> None:
        with open(self._read, "rb") as lines:  # noqa: PTH123 - a descriptor
            for line in lines:
                with self._lock:
                    kept = self._kept
                    if kept is not None and _AT_EACH_START.match(line.decode(errors="replace")):
                        kept.append(line)
                        continue
                _show(line)


def _show(line: bytes) -> None:
    """Write to the descriptor: Python's file may be locked by another thread when this process ends."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line)
