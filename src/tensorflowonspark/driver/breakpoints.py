"""Breakpoints at which nodes wait, and the terminals that are attached to them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock

from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.messages import BreakpointLeft, BreakpointReached, DebuggerInput, DebuggerOutput
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)
_CHARACTERS = 100_000  # of what pdb has written before a terminal comes


@dataclass(frozen=True)
class TerminalEnded:
    """The end of a terminal's connection, and whether the node's program goes on."""

    reason: str
    goes_on: bool = True


Show = Callable[[DebuggerOutput | TerminalEnded], object]


@dataclass
class _Wait:
    """A node at a breakpoint: where, what pdb has written there, and how to show more to its terminal."""

    stop: int  # its number
    place: str
    written: str = ""
    show: Show | None = None


class Breakpoints:
    """Connects the debuggers of nodes with terminals; safe to call from any thread."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._lock = RLock()
        self._waits: dict[int, _Wait] = {}  # by node

    def places(self) -> dict[str, str]:
        """Return where nodes wait, as ``file:line``, by their names."""
        with self._lock:
            return {str(self._roster.nodes[number].role): wait.place for number, wait in sorted(self._waits.items())}

    # ---- from nodes

    def receive(self, node: Node, message: BreakpointReached | DebuggerOutput | BreakpointLeft) -> None:
        """Note what a node's debugger reports."""
        match message:
            case BreakpointReached():
                self._reached(node, message)
            case DebuggerOutput():
                self._wrote(node, message)
            case BreakpointLeft():
                self.left(node, "the program ends" if message.quits else "the program goes on")

    def _reached(self, node: Node, message: BreakpointReached) -> None:
        """Note that a node takes commands; without a terminal, show how one is attached."""
        with self._lock:
            known = self._waits.get(node.number)
            if known is not None:
                known.stop, known.place = message.stop, message.place
                return
            self._waits[node.number] = _Wait(message.stop, message.place)
        text = "%s on %s waits in breakpoint() at %s: attach a terminal on this host with: tfos attach %s"
        CONSOLE.log(_log, logging.WARNING, text, node.role, node.host, message.place, node.role)

    def _wrote(self, node: Node, message: DebuggerOutput) -> None:
        """Show what a node's debugger has written, or keep it for the terminal that comes."""
        with self._lock:
            wait = self._waits.get(node.number)
            if wait is not None and wait.show is not None:
                wait.show(message)
            elif wait is not None:
                wait.written = (wait.written + message.text)[-_CHARACTERS:]

    def left(self, node: Node, reason: str, *, goes_on: bool = True) -> None:
        """Note that a node does not wait any more, if it did; its terminal gets the reason."""
        with self._lock:
            wait = self._waits.pop(node.number, None)
            if wait is not None and wait.show is not None:
                wait.show(TerminalEnded(reason, goes_on))

    # ---- from terminals

    def attach(self, name: str, show: Show) -> None:
        """Attach a terminal to the node of a name; if it can't be, the terminal gets the reason.

        `show` must not wait.
        """
        with self._lock:
            _, wait = self._find(name)
            if wait is None or wait.show is not None:
                why = "has a terminal already" if wait is not None else "waits at no breakpoint()"
                show(TerminalEnded(f"{name} {why}", goes_on=False))
                return
            wait.show = show
            show(DebuggerOutput(wait.written))
            wait.written = ""

    def type(self, name: str, show: Show, line: str | None) -> None:
        """Send a line of the terminal to its node; None at the end of its input: then the program goes on."""
        with self._lock:
            number, wait = self._find(name)
            message = DebuggerInput(wait.stop, line) if wait is not None and wait.show == show else None
        if message is not None:  # without the lock: a supervisor that is stopped may read nothing
            self._roster.send(number, message)

    def detach(self, name: str, show: Show) -> None:
        """Note that a terminal is gone: the program goes on."""
        self.type(name, show, None)
        with self._lock:
            _, wait = self._find(name)
            if wait is not None and wait.show == show:
                wait.show = None

    def _find(self, name: str) -> tuple[int, _Wait | None]:
        """Return the number of a node that waits, and how it does."""
        names = {str(self._roster.nodes[number].role): number for number in self._waits}
        number = names.get(name, -1)
        return number, self._waits.get(number)
