"""What a cluster reports, line by line: entries, their forms as text and as JSON, and which warnings are new."""

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Any

from tensorflowonspark.driver.metrics.records import ClusterEvent, EpochMetrics
from tensorflowonspark.terminal import plain

_TEXTS = 1000  # that are remembered
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LEVELS = {"failure": logging.ERROR} | dict.fromkeys(("notice", "restart", "node_restart"), logging.WARNING)


@dataclass(frozen=True)
class LogEntry:
    """A line that a node printed, or something that happened to the cluster.

    Examples
    --------
    >>> LogEntry(0.0, logging.INFO, "hello", "worker:1", "h7", {"trial": 3}).extra
    {'node': 'worker:1', 'host': 'h7', 'trial': 3}
    """

    time: float  # seconds since 1970 at which it reached the driver
    level: int
    message: str
    node: str | None = None  # None, as the host: it is about the cluster
    host: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # what else is known of it, as ``event``

    @property
    def moment(self) -> str:
        """The time as text, of this machine's time zone."""
        return f"{datetime.fromtimestamp(self.time):%Y-%m-%d %H:%M:%S}"

    @property
    def extra(self) -> dict[str, Any]:
        """All that is known beside time, level and message, as attributes of a log record."""
        known = {"node": self.node, "host": self.host}
        return {**{name: value for name, value in known.items() if value is not None}, **self.fields}

    @property
    def json(self) -> str:
        """The entry as an object of JSON, in one line of ASCII."""
        return _json(self.time, self.level, plain(self.message), self.extra)


def _json(when: float, level: int, message: str, fields: Mapping[str, Any]) -> str:
    moment = datetime.fromtimestamp(when).astimezone().isoformat(timespec="milliseconds")
    found = {"time": moment, "level": logging.getLevelName(level), **fields, "message": message}
    return json.dumps(_finite(found), default=str)


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, for which JSON has no form, by None."""
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonFormatter(logging.Formatter):
    """Formats the log records of the driver itself as the entries of its nodes.

    Examples
    --------
    >>> record = logging.makeLogRecord({"name": "a", "levelno": logging.WARNING, "msg": "late", "created": 0.0})
    >>> json.loads(JsonFormatter().format(record))["message"]
    'late'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON of a record."""
        fields = {"logger": record.name}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return _json(record.created, record.levelno, record.getMessage(), fields)


def entry_of_epoch(epoch: EpochMetrics, rows_per_second: float | None = None, event: str = "epoch") -> LogEntry:
    """Return the entry of an epoch that has ended, or that an evaluator has evaluated.

    Epochs count from 0, and for readers from 1, as Keras does. The rows are those of all nodes.

    Examples
    --------
    >>> entry_of_epoch(EpochMetrics(2, 0.0, 1.25, {"loss": 0.123456, "accuracy": 0.98}), 4510.4).message
    'epoch 3: loss 0.1235, accuracy 0.98 (1.2 s, 4,510 rows/s)'
    """
    values = ", ".join(f"{name} {value:.4g}" for name, value in epoch.values.items())
    known = {
        "seconds": epoch.seconds,
        "rows_per_second": None if rows_per_second is None else round(rows_per_second, 1),
        "attempt": epoch.attempt or None,
    }
    pace = ", ".join(
        text.format(value)
        for text, value in (("{:.1f} s", epoch.seconds), ("{:,.0f} rows/s", rows_per_second))
        if value is not None
    )
    text = f"epoch {epoch.epoch + 1}" + (f": {values}" if values else "") + (f" ({pace})" if pace else "")
    fields = {"event": event, "epoch": epoch.epoch + 1, "metrics": dict(epoch.values)}
    fields |= {name: value for name, value in known.items() if value is not None}
    return LogEntry(epoch.time, logging.INFO, text, fields=fields)


def entry_of_event(event: ClusterEvent) -> LogEntry:
    """Return the entry of something that happened to the cluster.

    Examples
    --------
    >>> entry_of_event(ClusterEvent(0.0, "node_restart", "it is up again", "worker:1")).message
    'worker:1: it is up again'
    """
    named = event.node is None or event.node in event.text
    text = event.text if named else f"{event.node}: {event.text}"
    return LogEntry(event.time, _LEVELS.get(event.kind, logging.INFO), text, event.node, fields={"event": event.kind})


class NewTexts:
    """Finds texts that are new: those that differ from every earlier one in more than numbers and addresses.

    Examples
    --------
    >>> texts = NewTexts()
    >>> texts.add("slow: 17 ms at 0x7f3a"), texts.add("slow: 4 ms at 0x55aa"), texts.add("out of memory")
    (True, False, True)
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._lock = Lock()  # each node's output has a thread

    def add(self, text: str) -> bool:
        """Remember a text; return whether it is new."""
        plain = _VARIABLE.sub("#", text)
        with self._lock:
            if plain in self._known:
                return False
            if len(self._known) == _TEXTS:
                self._known.clear()
            self._known.add(plain)
            return True
