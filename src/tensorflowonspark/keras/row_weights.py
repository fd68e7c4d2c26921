"""Weights of rows that have several losses: one for each pixel or time step.

Every fed row has one weight, and Keras 3 multiplies losses and weights as they are. Shapes such as (rows, 48, 48) and
(rows,) then fail, and (rows, steps) and (rows,) fit by chance along the wrong axis where both numbers are equal. The
module imports no TensorFlow, since nodes on JAX use it too.
"""

import inspect
from types import ModuleType
from typing import Any

import wrapt

__all__ = ["spread_weights"]


def spread_weights(losses: ModuleType) -> None:
    """Have Keras 3 multiply all losses of a row with its weight (called after the import of its ``loss``).

    Parameters
    ----------
    losses : module
        ``keras.src.losses.loss``, with any backend of Keras.
    """

    def reduce_weighted(wrapped: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        values, weights = bound.arguments["values"], bound.arguments.get("sample_weight")
        if weights is not None:
            axes = len(losses.ops.convert_to_tensor(values).shape)
            weights = losses.ops.convert_to_tensor(weights)
            while 0 < len(weights.shape) < axes:
                weights = losses.ops.expand_dims(weights, -1)
            bound.arguments["sample_weight"] = weights
        return wrapped(*bound.args, **bound.kwargs)

    wrapt.wrap_function_wrapper(losses, "reduce_weighted_values", reduce_weighted)
