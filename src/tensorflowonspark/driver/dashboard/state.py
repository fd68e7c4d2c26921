"""What the page shows, in a compact form that JSON can represent.

Its parts are those that change at different times: a page gets each as a whole, when it has changed. Nodes are columns.
Numbers have as many digits as the page shows.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from tensorflowonspark.driver.metrics.history import Report
from tensorflowonspark.driver.metrics.records import NodeMetrics
from tensorflowonspark.driver.metrics.store import MetricsStore

_DIGITS, _SHARE_DIGITS, _ROW_DIGITS = 3, 2, 4  # significant ones of rates and sizes, of shares, of numbers of rows
_LINE_CHARACTERS = 1000
_EVENTS = 1000  # the last ones
_ROSTER = ("name", "host")  # the columns that stay, of 1,000 nodes two fifths of all bytes
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


def page_state(store: MetricsStore, tensorboard: Callable[[], str | None] = lambda: None) -> dict[str, Any]:
    """Return what the page shows, by its parts.

    Parameters
    ----------
    store : MetricsStore
        The cluster's metrics.
    tensorboard : callable
        Returns the URL of TensorBoard, or None.

    Examples
    --------
    >>> page_state(MetricsStore("digits"))["summary"]["name"]
    'digits'
    """
    now, curves = store.snapshot(), _curves(store.series())
    columns = {name: [read(node) for node in now.nodes] for name, read in _COLUMNS.items()}
    events = [[round(each.time, 1), each.kind, each.text, each.node] for each in now.events]
    leader = next((each for each in now.nodes if each.epoch is not None), None)
    reported = now.epochs[-1].epoch if now.epochs else None  # by a program with data of its own
    begun = [each.time for each in now.events[:1]] + [each for each in curves["time"][:1] if each is not None]
    summary = {
        "name": now.name,
        "cluster": now.cluster,
        "state": now.state,
        "begun": round(min(begun, default=now.time), 1),
        "restarts": now.restarts,
        "rows": _rounded(now.rows, _ROW_DIGITS),
        "bytes": _rounded(now.bytes),
        "rows_per_second": _rounded(now.rows_per_second),
        "seconds_per_step": _rounded(now.seconds_per_step),
        "epoch": leader.epoch if leader else reported,
        "step": leader.step if leader else None,
        "steps": leader.steps if leader else None,
        "advice": now.advice,
        "tensorboard": tensorboard(),
    }
    return {
        "time": round(now.time, 1),
        "summary": summary,
        "roster": {name: columns.pop(name) for name in _ROSTER},
        "nodes": columns,
        "curves": curves,
        "reports": [_report(each) for each in store.reports()],
        "events": events[-_EVENTS:],
    }


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
