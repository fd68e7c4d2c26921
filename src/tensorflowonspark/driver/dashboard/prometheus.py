"""The metrics of a cluster in Prometheus's text format, by the package prometheus-client."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, get_args

from tensorflowonspark.driver.metrics.measures import MEASURES, numbers_of
from tensorflowonspark.driver.metrics.records import ClusterMetrics, EventKind
from tensorflowonspark.messages import GpuUsage

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_PREFIX = "tensorflowonspark_"
# By name: the description, and the value, or None where it is not known. Counters end with _total.
_CLUSTER_METRICS: dict[str, tuple[str, Callable[[ClusterMetrics], float | None]]] = {
    "cluster_running": ("Whether the cluster runs.", lambda now: now.state == "running"),
    "cluster_restarts_total": ("Restarts of all nodes.", lambda now: now.restarts),
    "cluster_epochs_total": ("Epochs that have ended, of all attempts.", lambda now: now.total_epochs),
    "cluster_rows_per_second": ("Rows per second of all nodes, of the last seconds.", lambda now: now.rows_per_second),
    "cluster_step_seconds": ("Seconds per step, the median of the nodes.", lambda now: now.seconds_per_step),
    "cluster_goodput_ratio": (
        "Share of the nodes' time in which they took steps that count.",
        lambda now: now.goodput.share if now.goodput else None,
    ),
}
_GPU_METRICS: dict[str, tuple[str, Callable[[GpuUsage], float]]] = {
    "node_gpu_utilization_ratio": ("Utilization of a GPU.", lambda gpu: gpu.utilization),
    "node_gpu_memory_bytes": ("Memory of a GPU that is in use.", lambda gpu: gpu.memory),
    "node_gpu_memory_limit_bytes": ("Memory of a GPU.", lambda gpu: gpu.memory_total),
}


def exposition(now: ClusterMetrics, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics as text, and the text's content type.

    What is not known has no sample; a metric of the program that is NaN has the sample ``NaN``.
    `accept` has the formats that the reader accepts (the header Accept).

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
    if now.goodput is not None:
        lost = GaugeMetricFamily(
            f"{_PREFIX}cluster_lost_ratio", "Share of the nodes' time, by cause.", labels=["cause"]
        )
        for cause, share in now.goodput.causes.items():
            lost.add_metric([cause], share)
        yield lost
    if now.sources:
        drawn = GaugeMetricFamily(f"{_PREFIX}cluster_epoch_rows", "Rows of a source in an epoch.", labels=["source"])
        for source, rows in now.sources.items():
            drawn.add_metric([source], rows)
        yield drawn
    events = CounterMetricFamily(
        f"{_PREFIX}cluster_events", "Starts, notices, failures, restarts and ends.", labels=["kind"]
    )
    kinds = [each.kind for each in now.events]
    for kind in get_args(EventKind):
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
    numbers = [numbers_of(node) for node in now.nodes]
    for measure in MEASURES:
        if not measure.exported:
            continue
        family = _family(measure.exported, measure.text, labels)
        for node, known in zip(now.nodes, numbers, strict=True):
            value = known[measure.name]
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
