"""What a cluster returns: the results of its programs, and its training in figures."""

from collections.abc import Iterable, Mapping
from html import escape
from reprlib import Repr
from typing import Any

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.html_table import html_table
from tensorflowonspark.driver.metrics.records import ClusterMetrics, EpochMetrics

__all__ = ["Results"]

_SHOWN = 200  # characters of a result in a table


class Results(dict[str, Any]):
    """What the function returned on each node that trains: a dict by the node's name, and the training in figures.

    A notebook shows it as a table. Nodes that were lost while the others went on, or that serve others, are not in it.

    Parameters
    ----------
    returned : mapping
        What the function returned, by the node's name, in the order of ranks.
    spec : ClusterSpec
        The nodes.
    metrics : ClusterMetrics
        The cluster's.

    Attributes
    ----------
    metrics : ClusterMetrics
        The cluster's metrics, epochs and events, as `Cluster.metrics` returned them when the function had returned.

    Examples
    --------
    >>> results = run(spark, lambda ctx: ctx.rank * 10, num_workers=2)
    >>> results
    {'worker:0': 0, 'worker:1': 10}
    >>> results.chief, results.by_worker, results.restarts
    (0, [0, 10], 0)
    """

    def __init__(self, returned: Mapping[str, Any], spec: ClusterSpec, metrics: ClusterMetrics) -> None:
        super().__init__(returned)
        self.metrics = metrics
        self._chief = str(spec.chief_role)

    @property
    def chief(self) -> Any:
        """What the function returned on the chief: the node ``chief:0``, or without one ``worker:0``; else None."""
        return self.get(self._chief)

    @property
    def by_worker(self) -> list[Any]:
        """What the function returned on each node that trains, a chief's first, by `Context.rank`."""
        return list(self.values())

    @property
    def history(self) -> dict[str, list[float]]:
        """The values of each metric, one for each epoch, as ``fit(...).history`` of Keras.

        They are those that the chief reported: ``fit`` does by itself, a loop by `Context.report`. Of an epoch that was
        repeated after a restart, the last values count. Several trainings follow one another.
        """
        history: dict[str, list[float]] = {}
        for epoch in last_repeats(self.metrics.epochs):
            for name, value in epoch.values.items():
                history.setdefault(name, []).append(value)
        return history

    @property
    def validation(self) -> dict[str, list[float]]:
        """What an evaluator has found, as ``val_loss``, and as ``epoch`` the numbers of its epochs, from 0.

        It has the epochs of earlier runs that this one has resumed. Empty without `Context.evaluate_checkpoints`.
        """
        return {name: list(values) for name, values in self.metrics.validation.items()}

    @property
    def seconds(self) -> float:
        """The time from the cluster's start until the function had returned on all nodes that train, with restarts."""
        return self.metrics.seconds

    @property
    def restarts(self) -> int:
        """How often all nodes were started again, after failures."""
        return self.metrics.restarts

    def _repr_html_(self) -> str:
        """Return a table of the results, and a line with the figures, for notebooks."""
        short = Repr()
        short.maxstring = short.maxother = _SHOWN
        rows = [[escape(name), escape(short.repr(result))] for name, result in self.items()]
        restarts = f", {self.restarts} restart{'s' * (self.restarts > 1)}" if self.restarts else ""
        last = "".join(f", {name} {values[-1]:.4g}" for name, values in self.history.items())
        return f"<div>{html_table(('node', 'result'), rows)}{escape(f'{self.seconds:.1f} s{restarts}{last}')}</div>"


def last_repeats(epochs: Iterable[EpochMetrics]) -> list[EpochMetrics]:
    """Return epochs without those that were repeated after a restart.

    Examples
    --------
    >>> found = last_repeats([EpochMetrics(0, 1.0, None, {}), EpochMetrics(1, 2.0, None, {}),
    ...     EpochMetrics(1, 3.0, None, {}, attempt=1)])
    >>> [(each.epoch, each.attempt) for each in found]
    [(0, 0), (1, 1)]
    """
    kept: list[EpochMetrics] = []
    for epoch in epochs:
        if kept and epoch.attempt > kept[-1].attempt:
            del kept[_place_of(epoch, kept) :]
        kept.append(epoch)
    return kept


def _place_of(epoch: EpochMetrics, before: list[EpochMetrics]) -> int:
    """Return where an epoch stands among those before a restart: only those of the last training can come again."""
    place = len(before)
    while place and before[place - 1].epoch >= epoch.epoch:
        place -= 1
        if place and before[place - 1].epoch >= before[place].epoch:
            break  # what is before belongs to another training
    return place
