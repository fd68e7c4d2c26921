"""Tracking of experiments: parameters, metrics and the report of a cluster, in the MLflow run that is active."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.metrics.event_log import MetricsListener
from tensorflowonspark.driver.metrics.measures import TRACKED
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.records import ClusterEvent, EpochMetrics
from tensorflowonspark.driver.run_log import RunLog, open_log
from tensorflowonspark.run_manifest import flat
from tensorflowonspark.secrecy import is_secret

_TAGS = ("program", "versions", "settings", "backend", "workers", "seed")  # parts of a manifest; its data are inputs


@dataclass
class Fit:
    """What an estimator adds to the log of the cluster that it starts."""

    parameters: Mapping[str, Any]
    log: RunLog | None = None  # that the cluster has used, once it was started
    epochs: int = 0  # that were logged


_fit: ContextVar[Fit | None] = ContextVar("tensorflowonspark_fit", default=None)


@contextmanager
def fit_parameters(parameters: Mapping[str, Any]) -> Iterator[Fit]:
    """Have a cluster that is started in the block by this thread log these parameters."""
    token = _fit.set(fit := Fit(parameters))
    try:
        yield fit
    finally:
        _fit.reset(token)


def track(
    store: MetricsStore,
    args: Any,
    master: str | None,
    spec: Callable[[], ClusterSpec],
    save_report: Callable[[str], object],
) -> None:
    """Log a cluster that is about to start to the run that is active in this thread, if there is one.

    Of the program's arguments the plain entries of a mapping are logged.
    """
    log = open_log()
    if log is None:
        return
    fit = _fit.get() or Fit(scalars(args))
    fit.log = log
    log.log_parameters({"cluster.program": store.name, "cluster.spark_master": master, **fit.parameters})
    store.events.subscribe(Tracker(log, store, spec, save_report, fit))


class Tracker(MetricsListener):
    """Logs the epochs and events of a cluster."""

    def __init__(
        self,
        log: RunLog,
        store: MetricsStore,
        spec: Callable[[], ClusterSpec],
        save_report: Callable[[str], object],
        fit: Fit,
    ) -> None:
        self._log = log
        self._store = store
        self._spec = spec
        self._save_report = save_report
        self._fit = fit
        self._restarts = 0

    def epoch_ended(self, epoch: EpochMetrics) -> None:
        """Log the metrics of an epoch, and at what pace it was trained."""
        prefix = self._log.prefix
        values = {f"{prefix}{name}": value for name, value in epoch.values.items()}
        values |= {f"system/{prefix}{name}": value for name, value in self._pace().items()}
        if epoch.seconds is not None:
            values[f"system/{prefix}seconds_per_epoch"] = epoch.seconds
        self._log.log_metrics(values, epoch.epoch, epoch.time)
        if not self._fit.epochs:
            self._log_manifest()  # also of a driver that is killed later
        self._fit.epochs += 1

    def validated(self, epoch: EpochMetrics) -> None:
        """Log what an evaluator has found of an epoch, under that one's number."""
        values = {f"{self._log.prefix}{name}": value for name, value in epoch.values.items()}
        self._log.log_metrics(values, epoch.epoch, epoch.time)

    def _pace(self) -> dict[str, float]:
        now = self._store.snapshot()
        known = {name: [value for node in now.nodes if (value := getattr(node, name)) is not None] for name in TRACKED}
        found = {name: fmean(values) for name, values in known.items() if values}
        return found | {name: vars(now)[name] for name in found if name in vars(now)}  # of the cluster, if it has one

    def happened(self, event: ClusterEvent) -> None:
        """Log what happened; at the cluster's end send all, or give up."""
        if event.kind == "started":
            spec = self._spec()
            counts = {"num_workers": spec.num_workers, "num_ps": spec.num_ps}
            counts |= {"chief": int(spec.chief), "evaluator": int(spec.evaluator)}
            self._log.log_parameters({f"cluster.{name}": count for name, count in counts.items() if count})
            self._log.log_tags({"cluster": self._store.cluster, "restarts": self._restarts})
        elif event.kind == "failure":
            self._log.log_tags({"failure": event.text})
        elif event.kind in ("restart", "node_restart"):
            self._restarts += 1
            self._log.log_tags({"restarts": self._restarts})
        elif event.kind == "ended":
            self._log.log_tags({"state": self._store.state})
            self._log_goodput(event.time)
            self._log_manifest()
            self._log.log_inputs(self._store.manifest.get("data", {}))
            self._log.log_file("report.html", self._save_report)
            self._log.close()

    def _log_manifest(self) -> None:
        tags = flat({name: each for name, each in self._store.manifest.items() if name in _TAGS})
        self._log.log_tags(tags)

    def _log_goodput(self, seconds: float) -> None:
        goodput = self._store.goodput()
        if goodput is not None:
            prefix = f"system/{self._log.prefix}"
            lost = {f"{prefix}lost/{cause}": share for cause, share in goodput.causes.items()}
            self._log.log_metrics({f"{prefix}goodput": goodput.share, **lost}, 0, seconds)


def scalars(values: Any) -> dict[str, Any]:
    """Return the entries of a mapping that are numbers, strings or booleans, without those that hold secrets.

    Examples
    --------
    >>> scalars({"epochs": 5, "rate": 0.1, "path": "/data", "api_token": "x", "columns": ["a"], 1: 2})
    {'epochs': 5, 'rate': 0.1, 'path': '/data'}
    """
    if not isinstance(values, Mapping):
        return {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(name, str) and isinstance(value, (bool, int, float, str)) and not is_secret(name)
    }
