"""Comparison of the models of all workers before their first step.

Workers sum their gradients, so those that begin with different weights stay different, in silence.
"""

from typing import Any

import google_crc32c
import keras
import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.collectives import local_values
from tensorflowonspark.keras.workers import combine, compared, roles

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
    weights = [each for each in model.weights if "float" in str(each.dtype) or not _is_statistic(each)]
    statistics = {id(each) for each in weights if _is_statistic(each)}
    variables = [*weights, *getattr(model.optimizer, "variables", ())]
    values = zip(variables, local_values(strategy, variables), strict=True)
    found = combine(
        "model.fit", [(each.path, id(each) in statistics, _checksum(value[0])) for each, value in values], compared
    )
    if isinstance(found, tuple):
        worker, path = found
        _, workers = roles()
        raise SpecError(
            f"the models of {workers[0]} and {workers[worker]} differ before the first step (in {path!r}): "
            "what sets weights or the optimizer before fit must do so on all workers, with the same values"
        )
    return {id(variables[place]) for place in found}


def _is_statistic(weight: Any) -> bool:
    """Return whether a weight was made to be set by the layer itself; one that is frozen was made to be trained."""
    return not weight.trainable and not getattr(weight.value, "trainable", True)


def _checksum(value: Any) -> int:
    return int(google_crc32c.value(np.ascontiguousarray(value.numpy()).tobytes()))
