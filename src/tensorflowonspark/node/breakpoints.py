"""Breakpoints in a node: ``breakpoint()`` waits for the terminal of ``tfos attach``, where pdb then is."""

import os
import pdb
import sys
import threading
from bdb import BdbQuit
from types import FrameType
from typing import Any

from tensorflowonspark.messages import BreakpointLeft, BreakpointReached, DebuggerOutput
from tensorflowonspark.node.driver_link import Link

_FOREVER = -1  # of a debugger that has no line to stop at
_one_at_a_time = threading.RLock()  # there is one terminal


def wait_at_breakpoints(link: Link) -> None:
    """Have ``breakpoint()`` wait for a terminal, unless ``PYTHONBREAKPOINT`` decides what it does."""
    owner = os.getpid()

    def hook(*args: Any, **keywords: Any) -> Any:
        if os.getpid() != owner:  # a forked child, which has no link
            return sys.__breakpointhook__(*args, **keywords)
        debugger, frame = _Debugger(link), sys._getframe(1)
        debugger.set_trace(frame)  # the last call: what follows would be traced
        return None

    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = hook


class _Terminal:
    """The file that pdb reads lines from, and writes to."""

    stop = 1  # the number of the present stop, or of the next one: of all debuggers of this process

    def __init__(self, link: Link) -> None:
        self._link = link
        self._written: list[str] = []

    def write(self, text: str) -> int:
        self._written.append(text)
        return len(text)

    def flush(self) -> None:
        if self._written:
            text, self._written = "".join(self._written), []
            self._link.send(DebuggerOutput(text))

    def readline(self) -> str:
        """Wait for a line of the terminal; when it is gone, the program goes on."""
        self.flush()
        line = self._link.wait_for_typed(_Terminal.stop)
        return "continue\n" if line is None else line

    def begin(self, place: str) -> None:
        self._link.send(BreakpointReached(_Terminal.stop, place))

    def end(self, *, quits: bool) -> None:
        _Terminal.stop += 1
        self.flush()
        self._link.send(BreakpointLeft(quits))


class _Debugger(pdb.Pdb):
    def __init__(self, link: Link) -> None:
        self._terminal = _Terminal(link)
        own: Any = self._terminal
        # It steps over this package's own frames, which call the program.
        super().__init__(
            stdin=own, stdout=own, nosigint=True, readrc=False, skip=["tensorflowonspark", "tensorflowonspark.*"]
        )

    def interaction(self, frame: FrameType | None, *rest: Any) -> None:
        """Take commands at a line, until one has the program go on."""
        with _one_at_a_time:
            self._terminal.begin(f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "the program's end")
            super().interaction(frame, *rest)
            if self.quitting or self.stoplineno == _FOREVER:
                self._terminal.end(quits=bool(self.quitting))
        if self.quitting:
            raise BdbQuit("q in tfos attach has ended it")
