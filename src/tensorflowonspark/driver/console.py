"""What a running cluster shows in the driver: lines of its nodes, epochs, warnings, and a progress bar."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import IO, Any

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.log_entries import JsonFormatter, LogEntry, NewTexts, entry_of_epoch, entry_of_event
from tensorflowonspark.driver.log_files import DRIVER, LogFiles
from tensorflowonspark.driver.metrics.event_log import MetricsListener
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.records import ClusterEvent, EpochMetrics
from tensorflowonspark.driver.progress_bar import ProgressBar
from tensorflowonspark.errors import SpecError
from tensorflowonspark.messages import Failed, Progress
from tensorflowonspark.supervisor.output import level_of
from tensorflowonspark.terminal import CONSOLE, Unblocked, in_notebook, outlets, plain, printable

_log = logging.getLogger(__name__)
_RATE_SECONDS = 3.0  # of an epoch, from which on its rows per second are known from the samples of each second
_PACKAGE = logging.getLogger("tensorflowonspark")
_hinted: list[bool] = []  # whether this process has shown that it does not show all lines


def parse_level(level: int | str) -> int:
    """Return the number of a logging level that is given by number or name.

    Examples
    --------
    >>> parse_level("warning")
    30
    """
    if isinstance(level, int) or level.isdecimal():
        return int(level)
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise SpecError.of("log_level", level, ": expected DEBUG, INFO, WARNING, ERROR, CRITICAL or a number")
    return number


def parse_show(show: str, spec: ClusterSpec) -> str | None:
    """Return the name of the node all of whose lines are shown; ``"none"`` for no node, None for every node.

    A node that the cluster does not have, even with the most workers, is refused.

    Examples
    --------
    >>> parse_show("chief", ClusterSpec(num_workers=2)), parse_show("all", ClusterSpec(num_workers=2))
    ('worker:0', None)
    """
    names = [str(role) for role in spec.roles]
    if show not in ("all", "chief", "none", *names):
        raise SpecError.of("show", show, f": expected all, chief, none or one of {', '.join(names)}")
    return {"all": None, "chief": str(spec.chief_role)}.get(show, show)


class ConsoleReporter(MetricsListener):
    """Shows what arrives from the nodes as it arrives, above a progress bar on a terminal or in a notebook.

    Each line is a record of the logger ``tensorflowonspark.nodes``, at the level that the line shows. If the program
    has not set up logging, lines go to standard error. `CONSOLE` writes all of it.

    Without `bar` it is drawn on a terminal and in a notebook; `stream` is its own, by default standard error. Of nodes
    that are not to be shown, only new warnings are. Epochs are shown up to the level INFO. `hadoop` returns the
    settings by which `log_dir` is reached, and `about` identifies the cluster among others that run at the same time,
    as ``{"trial": 3}``. A directory that can't be written to is refused (`SpecError`).
    """

    def __init__(
        self,
        config: ClusterConfig,
        bar: bool | None = None,
        stream: IO[str] | None = None,
        hadoop: Callable[[], Mapping[str, str]] | None = None,
        about: Mapping[str, object] | None = None,
    ) -> None:
        self._about = about or {}
        self._stream: Any = Unblocked(stream or sys.stderr, CONSOLE)
        self._json = config.log_format == "json"
        self._draws = not self._json and (self._stream.isatty() or in_notebook()) if bar is None else bar
        self._logger = logging.getLogger("tensorflowonspark.nodes")
        self._next: Progress | None = None  # not drawn yet
        self._bar = ProgressBar(self._loss)
        self._leader = ""  # the node whose progress is shown: all take the same steps
        self._broken = False  # output has failed
        self._show = config.show
        self._level = config.log_level
        self._chief = str(config.spec.chief_role)
        self._warnings = NewTexts()
        self._metrics: MetricsStore | None = None
        self._files = None if config.log_dir is None else LogFiles(config.log_dir, as_json=self._json, hadoop=hadoop)

    def start(self, metrics: MetricsStore) -> None:
        """Show epochs from now on, and in JSON all that happens to the cluster."""
        self._metrics = metrics
        metrics.events.subscribe(self)
        if self._json:
            _DRIVER_RECORDS.use()

    # ---- from nodes (each in its own thread)

    def show(self, node: str, lines: tuple[str, ...], host: str = "") -> None:
        """Show lines of a node, or those of them that concern everybody, and write all to its file."""
        now = time.time()
        entries = [LogEntry(now, level_of(line), line, node, host or None) for line in lines]
        if self._files is not None:
            self._files.write(node, entries)
        hidden = self._show not in (None, node)
        for entry in entries:
            is_warning = entry.level >= logging.WARNING
            is_new = is_warning and self._warnings.add(entry.message)
            if is_new or not hidden:
                self._put(entry)
            elif not (is_warning or _hinted) and self._show == self._chief:
                _hinted.append(True)
                self._put(LogEntry(now, logging.INFO, self._hint()))

    def _hint(self) -> str:
        kept = (
            'logs="logs" (--log-dir logs) writes them to files'
            if self._files is None
            else f"they are in {self._files.directory}"
        )
        every = 'logs=Logs(show="all") (--show all) shows those of all nodes'
        return f"only the lines of the chief are shown here: {every}, {kept}"

    def failed(self, node: str, host: str, failure: Failed) -> None:
        """Write the failure of a node to its file."""
        if self._files is not None:
            shown = failure.all_frames or failure.traceback
            fields = {"event": "failure", **({"traceback": shown} if shown else {})}
            text = f"failed: {failure.reason}"
            self._files.write(node, [LogEntry(time.time(), logging.ERROR, text, node, host, fields)])

    def progress(self, node: str, now: Progress) -> None:
        """Show the progress of a node."""
        self._leader = self._leader or node
        if not self._draws or node != self._leader:
            return
        pending, self._next = self._next, now
        if pending is None:  # else the writer is behind, and draws this one in its place
            CONSOLE.put(self._draw, self._streams)

    # ---- of the cluster

    def begin(self, node: str | None = None) -> None:
        """Note that the next lines of a node, or of all, are of a new process."""
        if self._files is not None:
            self._files.begin(node)

    def note(self, text: str, event: str = "advice", **fields: Any) -> None:
        """Show a line about the training as a whole, whichever node's output is shown, after all that has happened."""
        if self._metrics is not None:
            self._metrics.events.flush()
        entry = LogEntry(time.time(), logging.INFO, text, fields={"event": event, **fields})
        self._put(entry)
        if self._files is not None:
            self._files.write(DRIVER, [entry])
        CONSOLE.drain()  # before what the driver's program prints next

    def epoch_ended(self, epoch: EpochMetrics) -> None:
        """Show the metrics of an epoch, unless Keras has printed them in a line that is shown."""
        printed = epoch.shown and self._show in (None, self._chief)
        self._add_epoch(entry_of_epoch(epoch, self._rows_per_second(epoch)), is_shown=self._json or not printed)

    def validated(self, epoch: EpochMetrics) -> None:
        """Show what an evaluator has found of an epoch."""
        self._add_epoch(entry_of_epoch(epoch, event="validation"))

    def _add_epoch(self, entry: LogEntry, *, is_shown: bool = True) -> None:
        if self._files is not None:
            self._files.write(DRIVER, [entry])
        if self._level <= logging.INFO and is_shown:
            self._put(entry)

    def _rows_per_second(self, epoch: EpochMetrics) -> float | None:
        """Return the mean over an epoch; None for one that is too short."""
        if self._metrics is None or epoch.seconds is None or epoch.seconds < _RATE_SECONDS:
            return None
        curves, began = self._metrics.series(), epoch.time - epoch.seconds
        rates = zip(curves["time"], curves["rows_per_second"], strict=True)
        known = [rate for when, rate in rates if rate is not None and when is not None and when > began]
        return (fmean(known) or None) if known else None

    def happened(self, event: ClusterEvent) -> None:
        """Note what has happened to the cluster; as text, the driver's own log shows failures and restarts."""
        entry = entry_of_event(event)
        if self._files is not None:
            self._files.write(DRIVER, [entry])
        if self._json and entry.level >= self._level:
            self._put(entry)

    def close(self) -> None:
        """Remove the bar, after all earlier lines are shown."""
        self._leader = ""
        CONSOLE.put(self._close, self._streams)
        CONSOLE.drain()
        if self._files is not None:
            self._files.drain()

    def end(self) -> None:
        """Show and write all that there is, at the end of the cluster."""
        self.close()
        if self._files is not None:
            self._files.close()
        if self._json and self._metrics is not None:
            _DRIVER_RECORDS.release()
        self._metrics = None

    # ---- in the thread of the console

    def _put(self, entry: LogEntry) -> None:
        entry = replace(entry, fields={**self._about, **entry.fields})
        CONSOLE.put(partial(self._write, entry), self._streams, 1, len(entry.message))

    def _write(self, entry: LogEntry) -> None:
        with self._harmless(), CONSOLE.aside():
            source, message = self._source(entry), printable(entry.message)
            if _is_set_up(self._logger):
                self._logger.log(entry.level, "[%s] %s", source, plain(message), extra=entry.extra)
            else:
                message = message if self._stream.isatty() or in_notebook() else plain(message)
                self._stream.write(f"{entry.json if self._json else f'[{source}] {message}'}\n")
                self._stream.flush()

    def _source(self, entry: LogEntry) -> str:
        """Return where an entry comes from, as in ``worker:1``, ``training``, ``trial 3`` or ``trial 3, worker:1``."""
        names = [*(f"{name} {value}" for name, value in self._about.items()), *filter(None, [entry.node])]
        return ", ".join(names) or "training"

    def _streams(self) -> Iterator[Any]:
        yield self._stream
        if self._logger.hasHandlers():
            yield from outlets(self._logger)

    def _draw(self) -> None:
        now, self._next = self._next, None
        if now is not None:
            with self._harmless():
                self._bar.draw(now, self._stream)

    def _loss(self) -> float | None:
        reports = self._metrics.events.reports()[-1:] if self._metrics is not None else []
        return reports[0].values.get("loss") if reports else None

    def _close(self) -> None:
        with self._harmless():
            self._bar.close()

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


class _DriverRecords:
    """Has the driver's own log records shown as JSON while a cluster's output is, unless the program sets up logging.

    Otherwise Python shows them as text, from the level WARNING on.
    """

    def __init__(self) -> None:
        self._users = 0
        self.handler = logging.StreamHandler()
        self.handler.setFormatter(JsonFormatter())

    def use(self) -> None:
        self._users += 1
        if not _PACKAGE.hasHandlers():
            stream: Any = Unblocked(sys.stderr, CONSOLE)
            self.handler.setStream(stream)
            _PACKAGE.addHandler(self.handler)

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            _PACKAGE.removeHandler(self.handler)


_DRIVER_RECORDS = _DriverRecords()


def _is_set_up(logger: logging.Logger) -> bool:
    """Return whether the program has set up logging: whether there is a handler that is not this module's."""
    if not logger.hasHandlers():
        return False
    return _DRIVER_RECORDS.handler not in _PACKAGE.handlers
