"""Console output of a running cluster: the nodes' lines, and a progress bar for the epoch."""

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
    """Return a logging level by its number or name.

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
    """Shows lines as they come, above a bar if the terminal can draw one.

    Each line is a record of the logger ``tensorflowonspark.nodes``, at the level that the line shows. Where the
    program has not set up logging, lines go to standard error with the node's name in front. All of it is written by
    the `Console`.

    Parameters
    ----------
    bar : bool, optional
        Whether to draw the bar; by default if standard error is a terminal.
    stream : file, optional
        Where to draw, and to write lines where there is no logging; standard error.
    """

    def __init__(self, bar: bool | None = None, stream: IO[str] | None = None) -> None:
        self._stream: Any = Unblocked(stream or sys.stderr, CONSOLE)
        self._draws = self._stream.isatty() if bar is None else bar
        self._logger = logging.getLogger("tensorflowonspark.nodes")
        self._now: Progress | None = None  # that is not drawn yet
        self._bar: tqdm[NoReturn] | None = None
        self._leader = ""  # the node whose progress is shown: all take the same steps
        self._epoch = -1
        self._blind = False  # showing has failed

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
        """Show how far a node is."""
        self._leader = self._leader or node
        if not self._draws or node != self._leader:
            return
        waits, self._now = self._now, now
        if waits is None:  # else the writer, which is behind, draws this in its place
            CONSOLE.put(self._draw, self._streams)

    def _draw(self) -> None:
        now, self._now = self._now, None
        if now is None:
            return
        with self._harmless():
            if self._bar is None or now.epoch != self._epoch:
                self._close()
                self._epoch = now.epoch
                self._bar = tqdm(
                    total=now.steps or None,  # the end of a stream is not known
                    desc=f"epoch {now.epoch + 1}" if now.steps else "stream",
                    unit="step",
                    file=self._stream,
                    leave=False,
                    dynamic_ncols=True,
                )
            self._bar.update(now.step - self._bar.n)
            if now.step == now.steps:
                self._bar.refresh()  # tqdm draws at intervals, and would leave out the end of a short epoch

    def close(self) -> None:
        """Take the bar away, when all lines that came before are shown."""
        CONSOLE.put(self._close_harmlessly, self._streams)
        CONSOLE.drain()

    def _close_harmlessly(self) -> None:
        with self._harmless():
            self._close()

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Let training go on where nothing can be shown any longer, as after ``| head``."""
        try:
            yield
        except Exception:
            if not self._blind:
                self._blind = True
                with suppress(Exception):
                    _log.warning("the nodes' output and progress can't be shown", exc_info=True)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
