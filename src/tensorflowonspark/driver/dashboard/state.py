"""What the page shows, in a compact form that JSON can represent: as a whole, or what has changed since the last time.

Nodes are columns, and a change names the columns and the nodes that it is about. Numbers have as many digits as the
page shows, so that most of a cluster that trains evenly does not change.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorflowonspark.driver.metrics.records import ClusterMetrics, NodeMetrics
from tensorflowonspark.driver.metrics.reports import Report
from tensorflowonspark.driver.metrics.store import MetricsStore

__all__ = ["PageState", "node_details"]

_DIGITS, _SHARE_DIGITS, _ROW_DIGITS = 3, 2, 4  # significant ones of rates and sizes, of shares, of numbers of rows
_LINE_CHARACTERS = 1000
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}  # as JavaScript reads them


def _rounded(value: float | None, digits: int = _DIGITS) -> float | None:
    """Return a number with some significant digits, as short as possible; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short


def _reported(value: float) -> float | str:
    """Return a value of the program's; one that is not finite, which JSON does not have, by its name."""
    return float(f"{value:.6g}") if math.isfinite(value) else _NOT_FINITE[str(float(value))]


def _gpu_utilization(node: NodeMetrics) -> float | None:
    return sum(each.utilization for each in node.gpus) / len(node.gpus) if node.gpus else None


def _gpu_memory(node: NodeMetrics) -> int | None:
    return sum(each.memory for each in node.gpus) if node.gpus else None


_COLUMNS: Mapping[str, Callable[[NodeMetrics], Any]] = {
    "name": lambda node: node.name,
    "host": lambda node: node.host,
    "state": lambda node: node.state,
    "straggler": lambda node: int(node.straggler),
    "restarts": lambda node: node.restarts,
    "epoch": lambda node: node.epoch,
    "step": lambda node: node.step,
    "steps": lambda node: node.steps,
    "rows": lambda node: _rounded(node.rows, _ROW_DIGITS),
    "rows_per_second": lambda node: _rounded(node.rows_per_second),
    "seconds_per_step": lambda node: _rounded(node.seconds_per_step),
    "waiting_for_rows": lambda node: _rounded(node.waiting_for_rows, _SHARE_DIGITS),
    "waiting_for_workers": lambda node: _rounded(node.waiting_for_workers, _SHARE_DIGITS),
    "computing": lambda node: _rounded(node.computing, _SHARE_DIGITS),
    "cores": lambda node: _rounded(node.cores, _SHARE_DIGITS),
    "memory": lambda node: _rounded(node.memory),
    "gpu_utilization": lambda node: _rounded(_gpu_utilization(node), _SHARE_DIGITS),
    "gpu_memory": lambda node: _rounded(_gpu_memory(node)),
}


class PageState:
    """The state of a page, as it was when it was last refreshed.

    Parameters
    ----------
    store : MetricsStore
        The cluster's metrics.
    tensorboard : callable
        Returns the URL of TensorBoard, or None.

    Examples
    --------
    >>> state = PageState(MetricsStore("digits"))
    >>> _ = state.refresh()
    >>> state.full()["summary"]["name"]
    'digits'
    """

    def __init__(self, store: MetricsStore, tensorboard: Callable[[], str | None] = lambda: None) -> None:
        self._store = store
        self._tensorboard = tensorboard
        self._summary: dict[str, Any] = {}
        self._nodes: dict[str, list[Any]] = {}
        self._curves: dict[str, list[Any]] = {"time": []}
        self._last_time: float | None = None  # of the curves, as the store has it
        self._reports: list[Report] = []
        self._events: list[list[Any]] = []

    @property
    def node_count(self) -> int:
        """The number of nodes."""
        return len(self._nodes.get("name", ()))

    def full(self) -> dict[str, Any]:
        """Return all of the state; what ends with ``_all`` replaces what a page has had before."""
        return {
            "summary": self._summary,
            "nodes_all": self._nodes,
            "curves_all": self._curves,
            "reports_all": [_report(each) for each in self._reports],
            "events_all": self._events,
        }

    def refresh(self) -> dict[str, Any]:
        """Take over the present metrics; return what has changed, empty if nothing has but the time."""
        now = self._store.snapshot()
        changes = {**self._refresh_nodes(now.nodes), **self._refresh_curves(), **self._refresh_reports()}
        events = [[round(each.time, 1), each.kind, each.text, each.node] for each in now.events]
        if len(events) > len(self._events):
            changes["events"] = events[len(self._events) :]
            self._events = events
        summary = self._summarize(now)
        changed = {name: value for name, value in summary.items() if self._summary.get(name, self) != value}
        self._summary = summary
        if changes or len(changed) > 1:
            changes["summary"] = changed
        return changes

    def _summarize(self, now: ClusterMetrics) -> dict[str, Any]:
        leader = next((each for each in now.nodes if each.epoch is not None), None)
        reported = now.epochs[-1].epoch if now.epochs else None  # by a program with data of its own
        begun = [each[0] for each in (self._events[:1] or [[now.time]])] + self._curves["time"][:1]
        return {
            "time": round(now.time, 1),
            "name": now.name,
            "cluster": now.cluster,
            "state": now.state,
            "begun": min([*begun, self._summary.get("begun", now.time)]),
            "restarts": now.restarts,
            "rows": _rounded(now.rows, _ROW_DIGITS),
            "bytes": _rounded(now.bytes),
            "rows_per_second": _rounded(now.rows_per_second),
            "seconds_per_step": _rounded(now.seconds_per_step),
            "epoch": leader.epoch if leader else reported,
            "step": leader.step if leader else None,
            "steps": leader.steps if leader else None,
            "advice": now.advice,
            "tensorboard": self._tensorboard(),
        }

    def _refresh_nodes(self, nodes: Sequence[NodeMetrics]) -> dict[str, Any]:
        before = self._nodes
        self._nodes = {name: [read(node) for node in nodes] for name, read in _COLUMNS.items()}
        if self._nodes["name"] != before.get("name"):
            return {"nodes_all": self._nodes}
        changes: dict[str, list[Any]] = {}
        for name, values in self._nodes.items():
            old = before[name]
            if values == old:
                continue
            numbers = [number for number, value in enumerate(values) if value != old[number]]
            is_all = len(numbers) == len(values)  # then the numbers need not be sent
            changes[name] = [0, values] if is_all else [numbers, [values[each] for each in numbers]]
        return {"nodes": changes} if changes else {}

    def _refresh_curves(self) -> dict[str, Any]:
        last = self._last_time
        new = self._store.series(first=max(0, len(self._curves["time"]) - 1))
        if last is not None and new["time"][:1] == [last]:
            added = {name: values[1:] for name, values in _curves(new).items()}
            self._last_time = new["time"][-1]
            self._curves = {name: [*values, *added[name]] for name, values in self._curves.items()}
            return {"curves": added} if added["time"] else {}
        if last is not None:  # two points have become one
            new = self._store.series()
        if not new["time"]:
            return {}
        self._last_time, self._curves = new["time"][-1], _curves(new)
        return {"curves_all": self._curves}

    def _refresh_reports(self) -> dict[str, Any]:
        before, self._reports = self._reports, self._store.reports()
        if before and (len(self._reports) < len(before) or self._reports[len(before) - 1] is not before[-1]):
            return {"reports_all": [_report(each) for each in self._reports]}  # the store has left some out
        added = self._reports[len(before) :]
        return {"reports": [_report(each) for each in added]} if added else {}


def node_details(store: MetricsStore, number: int) -> dict[str, Any]:
    """Return what the page shows of one node: its curves, its last lines, its values and GPUs."""
    node = next((each for each in store.snapshot().nodes if each.number == number), None)
    gpus = () if node is None else node.gpus
    return {
        "curves": _curves(store.series(number)),
        "lines": [line[:_LINE_CHARACTERS] for line in store.lines(number)],
        "values": {} if node is None else {name: _reported(value) for name, value in node.values.items()},
        "gpus": [
            [each.address, _rounded(each.utilization, _SHARE_DIGITS), each.memory, each.memory_total] for each in gpus
        ],
    }


def _curves(series: Mapping[str, list[float | None]]) -> dict[str, list[float | None]]:
    times = [None if each is None else round(each, 1) for each in series["time"]]
    others = {name: [_rounded(each, 4) for each in values] for name, values in series.items() if name != "time"}
    return {"time": times, **others}


def _report(report: Report) -> list[Any]:
    values = {name: _reported(value) for name, value in report.values.items()}
    return [round(report.time, 1), report.epoch, int(report.ended), values]
