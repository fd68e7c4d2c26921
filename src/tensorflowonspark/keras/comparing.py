"""Comparison of the models of all workers before their first step.

Workers sum their gradients, so those that begin with different weights stay different, in silence.
"""

from typing import Any

import google_crc32c
import keras
import numpy as np
import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.collectives import any_of, broadcast, local_values, reduced

__all__ = ["differing_statistics"]


def differing_statistics(model: keras.Model) -> set[int]:
    """Compare the weights and the optimizer of all workers; return the ids of the statistics that differ.

    Statistics (BatchNorm's) may differ, if batches were trained on before ``fit``.

    Raises
    ------
    SpecError
        On all workers, if anything else differs, with its name and a worker.
    """
    strategy: Any = model.distribute_strategy
    is_chief = strategy.extended.should_checkpoint
    weights = [each for each in model.weights if "float" in str(each.dtype) or not _is_statistic(each)]
    statistics = {id(each) for each in weights if _is_statistic(each)}
    variables = [*weights, *getattr(model.optimizer, "variables", ())]
    own = [_checksum(values[0].numpy()) for values in local_values(strategy, variables)]
    summary = [len(own), _checksum(np.array(own))]
    (of_chief,) = broadcast(strategy, is_chief, [[tf.constant(summary, tf.int64)]])
    if not any_of(strategy, summary != of_chief.numpy().tolist()):
        return set()

    size = int(of_chief[0])
    own = (own + [-1] * size)[:size]  # an optimizer that is not built has fewer
    (of_chief,) = broadcast(strategy, is_chief, [[tf.constant(own, tf.int64)]])
    differs = [int(mine != its) for mine, its in zip(own, of_chief.numpy().tolist(), strict=True)]
    names = [each.path for each in variables] + ["optimizer"] * (size + 1 - len(variables))
    harmful = [number for number, each in enumerate(variables[:size]) if differs[number] and id(each) not in statistics]
    if len(variables) != size:
        harmful.append(min(size, len(variables)))
    workers = _workers(strategy)
    places = [0] * len(workers)  # of the first difference of each worker, from 1
    places[workers.index(f"{strategy.cluster_resolver.task_type}:{strategy.cluster_resolver.task_id}")] = (
        harmful[0] + 1 if harmful else 0
    )
    flags = [[tf.constant(each, tf.int64)] for each in (places, differs)]
    places, counts = (each.numpy().tolist() for each in reduced(strategy, tf.distribute.ReduceOp.SUM, flags))
    for worker, place in zip(workers, places, strict=True):
        if place:
            raise SpecError(
                f"the models of {workers[0]} and {worker} differ before the first step (in {names[place - 1]!r}): "
                "what sets weights or the optimizer before fit must do so on all workers, with the same values"
            )
    return {id(each) for each, count in zip(variables, counts, strict=True) if count}


def _is_statistic(weight: Any) -> bool:
    """Return whether a weight was made to be set by the layer itself; one that is frozen was made to be trained."""
    return not weight.trainable and not getattr(weight.value, "trainable", True)


def _checksum(value: Any) -> int:
    return int(google_crc32c.value(np.ascontiguousarray(value).tobytes()))


def _workers(strategy: Any) -> list[str]:
    """Return the names of all workers, the chief first."""
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    return [f"{job}:{number}" for job in ("chief", "worker") for number in range(len(jobs.get(job, [])))]
