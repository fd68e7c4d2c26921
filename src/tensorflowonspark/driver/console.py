"""Console output of a running cluster: the nodes' lines, and a progress bar for each epoch."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any, NoReturn

from tqdm import tqdm

from tensorflowonspark.errors import SpecError
from tensorflowonspark.messages import Progress
from tensorflowonspark.supervisor.output import level_of
from tensorflowonspark.terminal import CONSOLE, Unblocked, outlets

__all__ = ["ConsoleReporter", "parse_level"]

_log = logging.getLogger(__name__)


def parse_level(level: int | str) -> int:
    """Return the number of a logging level that is given by number or name.

    Raises
    ------
    SpecError
        If there is no such level.

    Examples
    --------
    >>> parse_level("warning")
    30
    """
    if isinstance(level, int):
        return level
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise SpecError(f"log_level={level!r}: expected DEBUG, INFO, WARNING, ERROR, CRITICAL or a number")
    return number


class ConsoleReporter:
    """Shows the nodes' lines as they arrive, above a progress bar if standard error is a terminal.

    Each line is a record of the logger ``tensorflowonspark.nodes``, at the level that the line shows. If the program
    has not set up logging, lines go to standard error, after the node's name. The `Console` writes all of it.

    Parameters
    ----------
    bar : bool, optional
        Whether to draw the bar; by default if the stream is a terminal.
    stream : file, optional
        The stream of the bar, and of lines without logging; by default standard error.
    """

    def __init__(self, bar: bool | None = None, stream: IO[str] | None = None) -> None:
        self._stream: Any = Unblocked(stream or sys.stderr, CONSOLE)
        self._draws = self._stream.isatty() if bar is None else bar
        self._logger = logging.getLogger("tensorflowonspark.nodes")
        self._next: Progress | None = None  # not drawn yet
        self._bar: tqdm[NoReturn] | None = None
        self._leader = ""  # the node whose progress is shown: all take the same steps
        self._epoch = -1
        self._broken = False  # output has failed

    def show(self, node: str, lines: tuple[str, ...]) -> None:
        """Show lines of a node."""
        for line in lines:
            CONSOLE.put(partial(self._write, node, line), self._streams, 1, len(line))

    def _write(self, node: str, line: str) -> None:
        with self._harmless():
            if self._logger.hasHandlers():
                self._logger.log(level_of(line), "[%s] %s", node, line)
            else:
                tqdm.write(f"[{node}] {line}", file=self._stream)

    def _streams(self) -> Iterator[Any]:
        yield self._stream
        if self._logger.hasHandlers():
            yield from outlets(self._logger)

    def progress(self, node: str, now: Progress) -> None:
        """Show the progress of a node."""
        self._leader = self._leader or node
        if not self._draws or node != self._leader:
            return
        pending, self._next = self._next, now
        if pending is None:  # else the writer is behind, and draws this one in its place
            CONSOLE.put(self._draw, self._streams)

    def _draw(self) -> None:
        now, self._next = self._next, None
        if now is None:
            return
        with self._harmless():
            if self._bar is None or now.epoch != self._epoch:
                self._close()
                self._epoch = now.epoch
                self._bar = tqdm(
                    total=now.steps or None,  # a stream has no known end
                    desc=f"epoch {now.epoch + 1}" if now.steps else "stream",
                    unit="step",
                    file=self._stream,
                    leave=False,
                    dynamic_ncols=True,
                )
            self._bar.update(now.step - self._bar.n)
            if now.step == now.steps:
                self._bar.refresh()  # tqdm draws at intervals, and would omit the end of a short epoch

    def close(self) -> None:
        """Remove the bar, after all earlier lines are shown."""
        CONSOLE.put(self._close_harmlessly, self._streams)
        CONSOLE.drain()

    def _close_harmlessly(self) -> None:
        with self._harmless():
            self._close()

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Ignore errors of the output, as after ``| head``: training goes on."""
        try:
            yield
        except Exception:
            if not self._broken:
                self._broken = True
                with suppress(Exception):
                    _log.warning("the nodes' output and progress can't be shown", exc_info=True)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
