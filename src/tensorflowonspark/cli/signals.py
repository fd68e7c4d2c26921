"""Signals that end a command: the first has its cluster end in order, another one at once."""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SIGNALLED = 128  # and the signal's number: the exit code of a process that a signal has ended


class Signalled(BaseException):
    """A signal has arrived that ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ended_by_signals(follows: str) -> Iterator[Callable[[], None]]:
    """Raise `Signalled` in the block when a signal arrives; yield a function that installs the handlers again.

    The first one has the command end in order, and is printed with what `follows` from it; another one, which arrives
    meanwhile, ends that. Signals that are ignored, as after ``nohup``, stay so.
    """
    received = 0

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        is_read = select.select([], [2], [], 0)[1]  # else the write would wait
        if is_read and not received:  # written directly: print may be interrupted in the middle of itself
            os.write(2, f"{signal.Signals(number).name}: {follows}\n".encode())
        received = number
        raise Signalled(number)

    try:
        with _handled_by(end) as install:
            yield install
    except RuntimeError:  # from Condition.wait, if the signal arrived while it had released its lock
        if not received:
            raise
        raise Signalled(received) from None


@contextmanager
def held_back() -> Iterator[None]:
    """Have signals that arrive in the block take effect at its end, so that none separates what belongs together."""
    received: list[int] = []
    with _handled_by(lambda number, _frame: received.append(number)):
        yield
    for number in received:
        signal.raise_signal(number)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Take no notice of signals in the block, which must end within a bounded time.

    It is for what would stay behind otherwise, as an application or staged files.
    """
    with _handled_by(lambda *_: None):  # SIG_IGN would be inherited by processes that are started here
        yield


def exit_code_of_signal(ended: Signalled | KeyboardInterrupt) -> int:
    """Print which signal has ended a command, and return its exit code: 128 and the signal's number."""
    number = ended.number if isinstance(ended, Signalled) else signal.SIGINT
    print(f"ended by {signal.Signals(number).name}", file=sys.stderr)
    return _SIGNALLED + number


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[Callable[[], None]]:
    """Handle signals that are not ignored in the block; yield a function that installs the handler again."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    before = {number: each for number, each in handlers.items() if each != signal.SIG_IGN}

    def install() -> None:
        for number in before:
            signal.signal(number, handler)

    install()
    try:
        yield install
    finally:
        for number, each in before.items():
            signal.signal(number, each)
