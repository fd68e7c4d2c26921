"""What the workers that train together agree on: one value, made of those of all, by way of the driver."""

import json
import operator
import os
from collections.abc import Callable
from typing import Any, Protocol

_SEVERAL = "_tfos_several"  # attribute of a strategy


class Workers(Protocol):
    """The workers that train together."""

    def combine(self, call: str, value: Any, merge: Callable[[list[Any]], Any]) -> Any:
        """Return what `merge` makes of all workers' values, as the function below."""


_workers: Workers | None = None  # those that this process trains with, if it is a node and not the only worker


def roles() -> tuple[str, list[str]]:
    """Return the role of this process by TF_CONFIG, and those of all workers, the chief first."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    workers = [f"{job}:{number}" for job in ("chief", "worker") for number in range(len(cluster.get(job, [])))]
    return f"{task.get('type', 'worker')}:{task.get('index', 0)}", workers


def has_several_workers(strategy: Any) -> bool:
    """Return whether a ``tf.distribute`` strategy trains together with other processes."""
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    if not hasattr(strategy, _SEVERAL):  # in a step, which comes later, it counts one replica
        setattr(strategy, _SEVERAL, bool(strategy.num_replicas_in_sync > len(strategy.extended.worker_devices)))
    return bool(getattr(strategy, _SEVERAL))


def connect(workers: Workers) -> None:
    """Have this process agree with other workers."""
    global _workers  # noqa: PLW0603 - a process is one worker, in each of its models and threads
    _workers = workers


def are_several() -> bool:
    """Return whether this process trains with others."""
    return _workers is not None


def combine(call: str, value: Any, merge: Callable[[list[Any]], Any] = list) -> Any:
    """Return what `merge` makes of all workers' values, the same on all of them; all must call it, in the same order.

    `call` is the program's, for errors, and the same on all workers. A value can be pickled. `merge` runs on the first
    worker, and takes the values in the workers' order, the chief's first; by default all are returned.

    Examples
    --------
    >>> combine("model.fit", 7, max)  # a process that trains alone
    7
    """
    return _workers.combine(call, value, merge) if _workers else merge([value])


def compared(
    of_all: list[list[tuple[str, bool, Any]]], same: Callable[[Any, Any], bool] = operator.eq
) -> set[int] | tuple[int, str]:
    """Return the places of the statistics that differ; or if anything else does, the worker and the variable's path.

    Each worker has of each variable the path, whether it is a statistic, and a value that all should have.

    Examples
    --------
    >>> compared([[("kernel", False, 1), ("mean", True, 2)], [("kernel", False, 1), ("mean", True, 3)]])
    {1}
    >>> compared([[("kernel", False, 1)], [("kernel", False, 2)]])
    (1, 'kernel')
    """
    first, *others = of_all
    differing: set[int] = set()
    for worker, other in enumerate(others, 1):
        places = [
            place for place, (mine, its) in enumerate(zip(first, other, strict=False)) if not same(mine[2], its[2])
        ]
        harmful = [path for path, is_statistic, _ in map(first.__getitem__, places) if not is_statistic]
        if len(other) != len(first):  # an optimizer that is not built has fewer
            harmful.append(max(first, other, key=len)[min(len(first), len(other))][0])
        if harmful:
            return worker, harmful[0]
        differing.update(places)
    return differing
