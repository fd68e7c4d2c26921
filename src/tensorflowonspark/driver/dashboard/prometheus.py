"""The metrics of a cluster in Prometheus's text format, by the package prometheus-client."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tensorflowonspark.driver.metrics.records import ClusterMetrics, NodeMetrics
from tensorflowonspark.messages import GpuUsage

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_PREFIX = "tensorflowonspark_"
# By name: the description, and the value of a node, or None where it is not known. Counters end with _total.
_NODE_METRICS: dict[str, tuple[str, Callable[[NodeMetrics], float | None]]] = {
    "node_rows_total": ("Rows that the program has taken in this attempt.", lambda node: node.rows),
    "node_bytes_total": ("Bytes of the values of these rows.", lambda node: node.bytes),
    "node_steps_total": ("Steps that the program has taken in this attempt.", lambda node: node.total_steps),
    "node_restarts_total": ("Restarts of this node alone.", lambda node: node.restarts),
    "node_epoch": ("The current epoch, from 0.", lambda node: node.epoch),
    "node_step": ("Steps taken in the current epoch.", lambda node: node.step),
    "node_rows_per_second": ("Rows per second, of the last seconds.", lambda node: node.rows_per_second),
    "node_step_seconds": ("Seconds per step, of the last seconds.", lambda node: node.seconds_per_step),
    "node_waiting_for_rows_ratio": ("Share of the time that it waits for rows.", lambda node: node.waiting_for_rows),
    "node_waiting_for_workers_ratio": (
        "Share of the time that it waits for other workers.",
        lambda node: node.waiting_for_workers,
    ),
    "node_computing_ratio": ("Share of the time that it computes.", lambda node: node.computing),
    "node_cores": ("Processor cores that it uses.", lambda node: node.cores),
    "node_memory_bytes": ("Memory that its processes use.", lambda node: node.memory),
    "node_straggler": ("Whether the other workers wait for this one.", lambda node: node.straggler),
}
_CLUSTER_METRICS: dict[str, tuple[str, Callable[[ClusterMetrics], float | None]]] = {
    "cluster_running": ("Whether the cluster runs.", lambda now: now.state == "running"),
    "cluster_restarts_total": ("Restarts of all nodes.", lambda now: now.restarts),
    "cluster_epochs_total": ("Epochs that have ended, of all attempts.", lambda now: now.total_epochs),
    "cluster_rows_per_second": ("Rows per second of all nodes, of the last seconds.", lambda now: now.rows_per_second),
    "cluster_step_seconds": ("Seconds per step, the median of the nodes.", lambda now: now.seconds_per_step),
}
_GPU_METRICS: dict[str, tuple[str, Callable[[GpuUsage], float]]] = {
    "node_gpu_utilization_ratio": ("Utilization of a GPU.", lambda gpu: gpu.utilization),
    "node_gpu_memory_bytes": ("Memory of a GPU that is in use.", lambda gpu: gpu.memory),
    "node_gpu_memory_limit_bytes": ("Memory of a GPU.", lambda gpu: gpu.memory_total),
}


def exposition(now: ClusterMetrics, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics as text, and the text's content type.

    What is not known has no sample; a metric of the program that is NaN has the sample ``NaN``.

    Parameters
    ----------
    now : ClusterMetrics
        The metrics.
    accept : str
        The formats that the reader accepts (the header Accept).

    Examples
    --------
    >>> now = ClusterMetrics("c", "digits", "running", 0.0, 0, 0, 0, None, None, (), (), ())
    >>> text, content_type = exposition(now)
    >>> [line for line in text.decode().splitlines() if "running" in line][-1]
    'tensorflowonspark_cluster_running 1.0'
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    class Collector:
        def collect(self) -> "Iterator[Metric]":
            yield from _of_cluster(now)
            yield from _of_nodes(now)

    registry = CollectorRegistry()
    registry.register(Collector())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _of_cluster(now: ClusterMetrics) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    info = GaugeMetricFamily(f"{_PREFIX}cluster_info", "The cluster: always 1.", labels=["name", "cluster", "state"])
    info.add_metric([now.name, now.cluster, now.state], 1)
    yield info
    for name, (text, read) in _CLUSTER_METRICS.items():
        family = _family(name, text, ())
        value = read(now)
        if value is not None:
            family.add_metric([], float(value))
            yield family
    events = CounterMetricFamily(f"{_PREFIX}cluster_events", "Starts, failures, restarts and ends.", labels=["kind"])
    kinds = [each.kind for each in now.events]
    for kind in ("started", "failure", "restart", "node_restart", "ended"):
        events.add_metric([kind], kinds.count(kind))
    yield events
    values = now.epochs[-1].values if now.epochs else {}
    if values:
        family = GaugeMetricFamily(f"{_PREFIX}metric", "Metrics at the end of the last epoch.", labels=["metric"])
        for metric, value in values.items():
            family.add_metric([metric], value)
        yield family


def _of_nodes(now: ClusterMetrics) -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    labels = ("node", "host")
    states = GaugeMetricFamily(f"{_PREFIX}node_state", "The state of a node: always 1.", labels=[*labels, "state"])
    for node in now.nodes:
        states.add_metric([node.name, node.host or "", node.state], 1)
    yield states
    for name, (text, read) in _NODE_METRICS.items():
        family = _family(name, text, labels)
        for node in now.nodes:
            value = read(node)
            if value is not None:
                family.add_metric([node.name, node.host or ""], float(value))
        yield family
    gpus = [(node, gpu) for node in now.nodes for gpu in node.gpus]
    for name, (text, of) in _GPU_METRICS.items():
        family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=[*labels, "gpu"])
        for node, gpu in gpus:
            family.add_metric([node.name, node.host or "", gpu.address], float(of(gpu)))
        if gpus:
            yield family


def _family(name: str, text: str, labels: tuple[str, ...]) -> "CounterMetricFamily | GaugeMetricFamily":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    if name.endswith("_total"):
        return CounterMetricFamily(f"{_PREFIX}{name}", text, labels=list(labels))
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=list(labels))
