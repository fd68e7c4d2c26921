"""Weights of rows that have several losses: one for each pixel or time step; and what losses are divided by.

Every fed row has one weight, and Keras 3 multiplies losses and weights as they are. Shapes such as (rows, 48, 48) and
(rows,) then fail, and (rows, steps) and (rows,) fit by chance along the wrong axis where both numbers are equal. The
module imports no TensorFlow, since nodes on JAX use it too.
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from tensorflowonspark.keras.hooks import wrap

AVERAGING = ("auto", "mean", "sum_over_batch_size")  # reductions of losses that divide by the number of rows


def is_averaged(losses: Iterable[Any]) -> bool:
    """Return whether losses that were given to ``compile`` are divided by the number of rows, as they are by default.

    Examples
    --------
    >>> is_averaged(["mse", None])
    True
    """
    return all(getattr(each, "reduction", "auto") in AVERAGING for each in losses)


def spread_weights(losses: ModuleType) -> None:
    """Have Keras 3 multiply all losses of a row with its weight (called after the import of its ``loss``)."""

    def spread(wrapped: Any, _: Any, /, values: Any, sample_weight: Any = None, *rest: Any, **options: Any) -> Any:
        if sample_weight is not None:
            axes = len(losses.ops.convert_to_tensor(values).shape)
            sample_weight = losses.ops.convert_to_tensor(sample_weight)
            while 0 < len(sample_weight.shape) < axes:
                sample_weight = losses.ops.expand_dims(sample_weight, -1)
        return wrapped(values, sample_weight, *rest, **options)

    wrap(losses, "reduce_weighted_values", spread)
