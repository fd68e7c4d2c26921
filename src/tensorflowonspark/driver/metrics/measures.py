"""What is measured of each node: one table for the page, its curves, Prometheus, and MLflow."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tensorflowonspark.driver.metrics.records import NodeMetrics
from tensorflowonspark.messages import GpuUsage


@dataclass(frozen=True)
class Measure:
    """A number of a node, and where it is shown."""

    name: str  # of the field of `NodeMetrics`, the column of the page, and the curve
    exported: str = ""  # Prometheus's name of it, after that of the package; empty: it is not exported
    text: str = ""  # and its description there
    digits: int | None = None  # significant ones on the page; 0: all; None: the page has no such column
    of_cluster: Literal["", "sum", "mean"] = ""  # how the curve of the cluster is made; empty: there is no curve
    rate: bool = False  # it is made of two totals of the node's training
    tracked: bool = False  # it is logged to MLflow with each epoch


DIGITS, SHARE_DIGITS, ROW_DIGITS = 3, 2, 4  # of rates and sizes, of shares, of numbers of rows
_tracked = partial(Measure, rate=True, tracked=True)
MEASURES = (
    Measure("rows", "node_rows_total", "Rows that the program has taken in this attempt.", ROW_DIGITS),
    Measure("bytes", "node_bytes_total", "Bytes of the values of these rows."),
    Measure("total_steps", "node_steps_total", "Steps that the program has taken in this attempt."),
    Measure("restarts", "node_restarts_total", "Restarts of this node alone.", 0),
    Measure("epoch", "node_epoch", "The current epoch, from 0.", 0),
    Measure("step", "node_step", "Steps taken in the current epoch.", 0),
    Measure("steps", digits=0),
    _tracked("rows_per_second", "node_rows_per_second", "Rows per second, of the last seconds.", DIGITS, "sum"),
    _tracked("seconds_per_step", "node_step_seconds", "Seconds per step, of the last seconds.", DIGITS, "mean"),
    _tracked(
        "waiting_for_rows",
        "node_waiting_for_rows_ratio",
        "Share of the time that it waits for rows.",
        SHARE_DIGITS,
        "mean",
    ),
    _tracked(
        "waiting_for_workers",
        "node_waiting_for_workers_ratio",
        "Share of the time that it waits for other workers.",
        SHARE_DIGITS,
        "mean",
    ),
    Measure(
        "computing", "node_computing_ratio", "Share of the time that it computes.", SHARE_DIGITS, "mean", rate=True
    ),
    Measure("cores", "node_cores", "Processor cores that it uses.", SHARE_DIGITS, "sum"),
    Measure("memory", "node_memory_bytes", "Memory that its processes use.", DIGITS, "sum"),
    Measure("gpu_utilization", digits=SHARE_DIGITS, of_cluster="mean"),  # each GPU is exported for itself
    Measure("gpu_memory", digits=DIGITS, of_cluster="sum"),
    Measure("straggler", "node_straggler", "Whether the other workers wait for this one.", 0),
)
CURVES = {each.name: each.of_cluster for each in MEASURES if each.of_cluster}
RATES = tuple(each.name for each in MEASURES if each.rate)
TRACKED = tuple(each.name for each in MEASURES if each.tracked)


def of_gpus(gpus: Sequence[GpuUsage]) -> dict[str, float | None]:
    """Return the measures of a node's GPUs together; None of a node without GPUs."""
    if not gpus:
        return {"gpu_utilization": None, "gpu_memory": None}
    utilization = sum(each.utilization for each in gpus) / len(gpus)
    return {"gpu_utilization": utilization, "gpu_memory": sum(each.memory for each in gpus)}


def numbers_of(node: NodeMetrics) -> dict[str, Any]:
    """Return the value of each measure of a node, by its name; None if it is not known."""
    return {**vars(node), **of_gpus(node.gpus), "straggler": int(node.straggler)}
