"""What the page shows, in a compact form that JSON can represent.

Its parts are those that change at different times: a page gets each as a whole, when it has changed. Nodes are columns.
Numbers have as many digits as the page shows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorflowonspark.driver.metrics.history import Report
from tensorflowonspark.driver.metrics.measures import (
    DIGITS,
    MEASURES,
    ROW_DIGITS,
    SHARE_DIGITS,
    numbers_of,
)
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.records import NodeMetrics

_LINE_CHARACTERS = 1000
_EVENTS = 1000  # the last ones
_ROSTER = ("name", "host")  # the columns that stay, of 1,000 nodes two fifths of all bytes
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}  # as JavaScript reads them


def _rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """Return a number with some significant digits, as short as possible; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short


def _reported(value: float) -> float | str:
    """Return a value of the program's; one that is not finite, which JSON does not have, by its name."""
    return float(f"{value:.6g}") if math.isfinite(value) else _NOT_FINITE[str(float(value))]


def _columns(nodes: Sequence[NodeMetrics]) -> dict[str, list[Any]]:
    """Return what the page shows of each node, by name."""
    columns = {name: [getattr(node, name) for node in nodes] for name in (*_ROSTER, "state")}
    numbers = [numbers_of(node) for node in nodes]
    for measure in MEASURES:
        if measure.digits is not None:
            values = [each[measure.name] for each in numbers]
            columns[measure.name] = [_rounded(each, measure.digits) for each in values] if measure.digits else values
    return columns


def page_state(store: MetricsStore, tensorboard: Callable[[], str | None] = lambda: None) -> dict[str, Any]:
    """Return what the page shows, by its parts.

    `tensorboard` returns its URL, or None.

    Examples
    --------
    >>> page_state(MetricsStore("digits"))["summary"]["name"]
    'digits'
    """
    now, curves = store.snapshot(), _curves(store.series())
    columns = _columns(now.nodes)
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
        "rows": _rounded(now.rows, ROW_DIGITS),
        "bytes": _rounded(now.bytes),
        "rows_per_second": _rounded(now.rows_per_second),
        "seconds_per_step": _rounded(now.seconds_per_step),
        "epoch": leader.epoch if leader else reported,
        "step": leader.step if leader else None,
        "steps": leader.steps if leader else None,
        "advice": now.advice,
        "goodput": now.goodput and _rounded(now.goodput.share, SHARE_DIGITS),
        "goodput_text": now.goodput and str(now.goodput),
        "sources": ", ".join(f"{name} {rows}" for name, rows in now.sources.items()),
        "tensorboard": tensorboard(),
    }
    return {
        "time": round(now.time, 1),
        "summary": summary,
        "roster": {name: columns.pop(name) for name in _ROSTER},
        "nodes": columns,
        "curves": curves,
        "reports": [_report(each) for each in store.events.reports()],
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
            [each.address, _rounded(each.utilization, SHARE_DIGITS), each.memory, each.memory_total] for each in gpus
        ],
    }


def _curves(series: Mapping[str, list[float | None]]) -> dict[str, list[float | None]]:
    times = [None if each is None else round(each, 1) for each in series["time"]]
    others = {name: [_rounded(each, 4) for each in values] for name, values in series.items() if name != "time"}
    return {"time": times, **others}


def _report(report: Report) -> list[Any]:
    values = {name: _reported(value) for name, value in report.values.items()}
    return [round(report.time, 1), report.epoch, int(report.ended), values]
