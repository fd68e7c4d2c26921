"""Metrics see real rows only.

Keras gives sample weights to the ``weighted_metrics`` of ``compile`` and not to its ``metrics``, which would count
padding like any other row. So these are updated with the real rows of a batch and nothing else. (To hand them a mask as
weights would be less: there are metrics that ignore weights, and some that fail with them, such as a function that
returns one number for the batch, or ``MeanIoU`` on images.)
"""

import copy
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
import wrapt

from tensorflowonspark.keras.padding import real_rows, update_on

__all__ = ["skip_padding", "skip_padding_in_tf_keras"]


def skip_padding(trainer: ModuleType) -> None:
    """Have Keras 3 update unweighted metrics with real rows (called after the import of its TensorFlow trainer)."""
    from keras.src.backend.common.stateless_scope import in_stateless_scope

    def update_state(wrapped: Any, container: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        y_true, y_pred, weights = _arguments(*args, **kwargs)
        real = real_rows(weights)
        if real is None or not _have_rows(y_true, y_pred):
            wrapped(y_true, y_pred, weights)
            return
        if not container.built:
            container.build(y_true, y_pred)

        def only(unweighted: Sequence[Any] = (), weighted: Sequence[Any] = ()) -> Callable[..., None]:
            """Return Keras's own function, as it is for a container that has only these metrics."""
            part = SimpleNamespace(
                built=True,
                _flatten_y=container._flatten_y,
                _flat_metrics=unweighted,
                _flat_weighted_metrics=weighted,
            )
            return lambda *values: wrapped.__func__(part, *values)

        # Keras builds a model in a scope of its own, which holds on to the values that are assigned.
        update_on(real, only(container._flat_metrics), y_true, y_pred, at_once=in_stateless_scope())
        only(weighted=container._flat_weighted_metrics)(y_true, y_pred, weights)

    wrapt.wrap_function_wrapper(trainer.base_trainer, "CompileMetrics.update_state", update_state)


def skip_padding_in_tf_keras(compile_utils: ModuleType) -> None:
    """Have Keras 2 do the same (called after the import of its ``compile_utils``)."""

    def update_state(wrapped: Any, container: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        y_true, y_pred, weights = _arguments(*args, **kwargs)
        real = real_rows(weights)
        if real is None or not _have_rows(y_true, y_pred):
            wrapped(y_true, y_pred, weights)
            return
        if not container.built:
            container.build(y_pred, container._conform_to_outputs(y_pred, y_true))

        def without(name: str) -> Callable[..., None]:
            """Return Keras's own function, as it is for a container that does not have these metrics."""
            part = copy.copy(container)
            setattr(part, name, [[] for _ in getattr(container, name)])  # for each output
            return lambda *values: wrapped.__func__(part, *values)

        update_on(real, without("_weighted_metrics"), y_true, y_pred, at_once=False)
        without("_metrics")(y_true, y_pred, weights)

    wrapt.wrap_function_wrapper(compile_utils, "MetricsContainer.update_state", update_state)


def _arguments(y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[Any, Any, Any]:
    return y_true, y_pred, sample_weight


def _have_rows(*values: Any) -> bool:
    """Tell whether rows can be taken from all of the values (from sparse tensors they can't: they stay as they are)."""
    kinds = (tf.Tensor, tf.RaggedTensor, np.ndarray)
    return all(each is None or isinstance(each, kinds) for each in tf.nest.flatten(values))
