"""Console output of a running cluster: the nodes' lines, and a progress bar for each epoch."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

from tqdm import TqdmWarning, tqdm

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.errors import SpecError
from tensorflowonspark.messages import Progress
from tensorflowonspark.supervisor.output import level_of
from tensorflowonspark.terminal import CONSOLE, Console, Unblocked, in_notebook, outlets

__all__ = ["ConsoleReporter", "parse_level", "parse_show", "writable_directory"]

_log = logging.getLogger(__name__)
_FILES = Console()  # apart from the terminal, whose reader may have stopped
os.register_at_fork(after_in_child=_FILES._reset)


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
    if isinstance(level, int) or level.isdecimal():
        return int(level)
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise SpecError(f"log_level={level!r}: expected DEBUG, INFO, WARNING, ERROR, CRITICAL or a number")
    return number


def parse_show(show: str, spec: ClusterSpec) -> str | None:
    """Return the name of the only node whose output is shown; None for all.

    Raises
    ------
    SpecError
        If the cluster has no such node, even with the most workers.

    Examples
    --------
    >>> parse_show("chief", ClusterSpec(num_workers=2)), parse_show("all", ClusterSpec(num_workers=2))
    ('worker:0', None)
    """
    names = [str(role) for role in spec.roles]
    if show not in ("all", "chief", *names):
        raise SpecError(f"show={show!r}: expected all, chief or one of {', '.join(names)}")
    return {"all": None, "chief": str(spec.chief_role)}.get(show, show)


class ConsoleReporter:
    """Shows the nodes' lines as they arrive, above a progress bar on a terminal or in a notebook.

    Each line is a record of the logger ``tensorflowonspark.nodes``, at the level that the line shows. If the program
    has not set up logging, lines go to standard error, after the node's name. The `Console` writes all of it.

    Parameters
    ----------
    bar : bool, optional
        Whether to draw the bar; by default if the stream is a terminal, or this is a notebook.
    stream : file, optional
        The stream of the bar, and of lines without logging; by default standard error.
    show : str, optional
        The only node whose lines are shown; by default those of all.
    log_dir : str, optional
        A directory in which the lines of each node are also written; it is made if there is none.

    Raises
    ------
    SpecError
        If the directory can't be written to.
    """

    def __init__(
        self,
        bar: bool | None = None,
        stream: IO[str] | None = None,
        show: str | None = None,
        log_dir: str | None = None,
    ) -> None:
        self._stream: Any = Unblocked(stream or sys.stderr, CONSOLE)
        self._draws = self._stream.isatty() or in_notebook() if bar is None else bar
        self._logger = logging.getLogger("tensorflowonspark.nodes")
        self._next: Progress | None = None  # not drawn yet
        self._bar: tqdm[NoReturn] | None = None
        self._leader = ""  # the node whose progress is shown: all take the same steps
        self._epoch = -1
        self._broken = False  # output has failed
        self._begun: set[Path] = set()  # files that this cluster has written to
        self._files_broken = False
        self._show = show
        self._log_dir = writable_directory(log_dir) if log_dir is not None else None

    def show(self, node: str, lines: tuple[str, ...]) -> None:
        """Show lines of a node, and write them to its file."""
        if self._log_dir is not None:
            own_file = self._log_dir / f"{node.replace(':', '-')}.log"
            size = sum(map(len, lines))
            _FILES.put(partial(self._write_to, own_file, lines), lambda: iter(()), len(lines), size)
        if self._show not in (None, node):
            return
        for line in lines:
            CONSOLE.put(partial(self._write, node, line), self._streams, 1, len(line))

    def note(self, text: str) -> None:
        """Show a line about the training as a whole, whichever node's output is shown."""
        CONSOLE.put(partial(self._write, "training", text), self._streams, 1, len(text))
        CONSOLE.drain()  # before what the driver's program prints next

    def _write_to(self, own_file: Path, lines: tuple[str, ...]) -> None:
        try:
            with own_file.open("a", encoding="utf-8", errors="replace") as file:
                if own_file not in self._begun and file.tell():
                    file.write(f"---- {datetime.now():%Y-%m-%d %H:%M:%S}: a new start\n")
                self._begun.add(own_file)
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            if not self._files_broken:
                self._files_broken = True
                CONSOLE.log(_log, logging.WARNING, "the nodes' output can't be written to %s (%s)", own_file, error)

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
                self._bar = _bar_class()(
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
        _FILES.drain()

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


def _bar_class() -> Any:
    """Return the bar of a notebook, a widget where there are widgets, or that of a terminal."""
    if not in_notebook():
        return tqdm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # without ipywidgets the bar is a text
        from tqdm.auto import tqdm as automatic
    return automatic


def writable_directory(directory: str) -> Path:
    """Return the absolute path of a directory, which is made if there is none.

    Raises
    ------
    SpecError
        If it can't be written to.
    """
    path = Path(directory).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path).close()
    except OSError as error:
        raise SpecError(f"log_dir={directory!r} can't be written to ({error})") from error
    return path
