"""Losses and metrics over real rows only, on JAX.

As on TensorFlow (`keras.metrics`, `keras.losses`) the weight -0.0 marks a padding row. JAX compiles a step for arrays
of fixed shapes, so no rows can be taken out. Instead:

- A loss that is averaged over the rows receives larger weights, so that it is the mean over the real rows, and so are
  the gradients: they equal those of one process that takes the same rows as a smaller batch.
- Unweighted metrics receive a weight for each row: 1, or 0 for padding.
- ``BatchNormalization`` receives a mask of the real rows.

All of this is done in methods of ``keras.Model``, ``keras.metrics.Mean`` and ``keras.layers.BatchNormalization`` that
Keras documents.
"""

import inspect
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tensorflowonspark.keras.hooks import is_own, replacing, setting, wrap
from tensorflowonspark.keras.row_weights import is_averaged

_log = logging.getLogger(__name__)
_warned: set[str] = set()


def real_rows(weights: Any) -> Any:
    """Return a mask of the real rows of a batch, a float32 array of 1 and 0; None if no weights can mark padding.

    Parameters
    ----------
    weights : array, nested structure of them, or None
        The sample weights. A row is padding if its weight for any output is -0.0; one with several weights (of its
        time steps) if all of them are.
    """
    import jax.numpy as jnp
    import keras

    masks = []
    for weight in [each for each in keras.tree.flatten(weights) if each is not None]:
        values = jnp.asarray(weight)
        if values.ndim and jnp.issubdtype(values.dtype, jnp.floating):
            marked = (values == 0) & jnp.signbit(values)
            masks.append(marked.all(axis=tuple(range(1, values.ndim))))
    if not masks:
        return None
    padding = masks[0]
    for each in masks[1:]:
        padding |= each
    return jnp.where(padding, 0.0, 1.0).astype(jnp.float32)


@dataclass(frozen=True)
class _Batch:
    """The batch of the step that is being traced.

    Attributes
    ----------
    real : array
        The mask of its real rows.
    averaged : bool
        Whether the losses of the model are divided by the number of rows.
    """

    real: Any
    averaged: bool

    @property
    def count(self) -> Any:
        """The number of real rows."""
        return self.real.sum()

    def for_loss(self, predicted: Any, weights: Any) -> Any:
        """Return weights with which a loss that is divided by the number of all rows is one of the real rows.

        The mask of a prediction, by whose number Keras divides instead, is restricted to the real rows.
        """
        import jax.numpy as jnp
        import keras

        outputs = keras.tree.flatten(predicted)
        masked = [self._restrict(each) for each in outputs]
        if not self.averaged or weights is None:
            return weights
        factor = self.real.size / jnp.maximum(self.count, 1.0)
        flat = keras.tree.flatten(weights)
        if len(flat) != len(masked):
            masked = [False] * len(flat)
        scaled = [
            each if each is None or is_masked else each * factor for each, is_masked in zip(flat, masked, strict=True)
        ]
        return keras.tree.pack_sequence_as(weights, scaled)

    def _restrict(self, predicted: Any) -> bool:
        """Have the mask of a prediction exclude padding; return whether it has one."""
        from keras.src.backend.common import masking  # its import is complete by now

        mask = masking.get_keras_mask(predicted)
        if mask is None or mask.shape[:1] != self.real.shape:
            return False
        masking.set_keras_mask(predicted, mask & (_spread(self.real, len(mask.shape)) > 0))
        return True


_batch: ContextVar[_Batch | None] = ContextVar("batch", default=None)


def skip_padding(keras: Any) -> None:
    """Have the models of Keras leave out padding (called after its import)."""
    for name in ("train_step", "test_step"):
        wrap(keras, f"Model.{name}", _step)
    wrap(keras, "Model.compute_loss", _compute_loss)
    wrap(keras, "Model.compute_metrics", _compute_metrics)
    wrap(keras, "metrics.Mean.update_state", _update_mean)
    wrap(keras, "layers.BatchNormalization.call", _normalize)


def _step(wrapped: Any, model: Any, /, state: Any, data: Any) -> Any:
    import keras

    real = real_rows(keras.utils.unpack_x_y_sample_weight(data)[2])
    if real is None:
        return wrapped(state, data)
    with setting(_batch, _Batch(real, is_averaged(keras.tree.flatten(model.loss)))):
        return wrapped(state, data)


def own_step(model: Any, name: str) -> AbstractContextManager[None]:
    """Have a step of a program's own leave out padding where it calls ``compute_loss``, for the duration of a block.

    Parameters
    ----------
    model : keras.Model
        The model.
    name : str
        Its method, ``"train_step"`` or ``"test_step"``.
    """
    own = getattr(model, name)
    return replacing(model, name, lambda state, data: _step(own, model, state, data))


def warn_of_own(model: Any, methods: Iterable[str]) -> None:
    """Warn once of a model's own methods, which receive padding, that have to leave it out themselves."""
    own = [name for name in methods if is_own(model, name)]
    if own and type(model).__name__ not in _warned:
        _warned.add(type(model).__name__)
        _log.warning(
            "%s has a method of its own, %s, which gets the rows of weight -0.0 that pad the last batches: Keras's "
            "compute_loss leaves them out; a loss of your own has to be multiplied by the weights of the rows, and "
            "divided by the number of real ones",
            type(model).__name__,
            " and ".join(own),
        )


def _compute_loss(wrapped: Any, _model: Any, /, *args: Any, **kwargs: Any) -> Any:
    batch = _batch.get()
    if batch is None:
        return wrapped(*args, **kwargs)
    bound = dict(inspect.signature(wrapped).bind(*args, **kwargs).arguments)
    bound["sample_weight"] = batch.for_loss(bound.get("y_pred"), bound.get("sample_weight"))
    return wrapped(**bound)


def _update_mean(wrapped: Any, _mean: Any, /, values: Any, sample_weight: Any = None) -> Any:
    batch = _batch.get()
    # With the number of a batch's rows Keras weighs the mean of a batch, as that of the loss.
    if batch is not None and isinstance(sample_weight, int) and sample_weight == batch.real.size:
        sample_weight = batch.count
    return wrapped(values, sample_weight=sample_weight)


def _compute_metrics(wrapped: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    batch = _batch.get()
    if batch is None:
        return wrapped(*args, **kwargs)
    bound = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    containers = [each for each in model.metrics if hasattr(each, "metrics")]
    for each in containers:
        if not each.built:
            each.build(bound["y"], bound["y_pred"])
    metrics = {id(metric): metric for each in containers for metric in each.metrics}  # several outputs may share one
    with ExitStack() as masked:
        for metric in metrics.values():
            update = _masked(metric, metric.update_state, batch.real)
            masked.enter_context(replacing(metric, "update_state", update))
        return wrapped(*args, **kwargs)


def _masked(metric: Any, own: Callable[..., Any], real: Any) -> Callable[..., Any]:
    """Return the update of a metric that gives it a weight for each row, if it is called without weights."""

    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is not None:
            return own(y_true, y_pred, sample_weight=sample_weight)
        if "sample_weight" not in inspect.signature(own).parameters:
            _warn(metric)
            return own(y_true, y_pred)
        is_of_pixels = hasattr(metric, "target_class_ids")  # metrics of images, with a weight for each pixel
        return own(y_true, y_pred, sample_weight=_of_pixels(metric, y_true, real) if is_of_pixels else real)

    return update_state


def _of_pixels(metric: Any, y_true: Any, real: Any) -> Any:
    import jax.numpy as jnp

    shape = list(y_true.shape)
    if not metric.sparse_y_true:
        del shape[metric.axis]
    return jnp.broadcast_to(_spread(real, len(shape)), shape).astype("int32")


def _spread(real: Any, rank: int) -> Any:
    return real.reshape(-1, *[1] * (rank - 1))


def _warn(metric: Any) -> None:
    if type(metric).__name__ not in _warned:
        _warned.add(type(metric).__name__)
        _log.warning(
            "the metric %s takes no sample_weight, so that rows which pad the last batches count in it: give its "
            "update_state that parameter",
            type(metric).__name__,
        )


def _normalize(wrapped: Any, layer: Any, /, inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
    batch, rank = _batch.get(), len(inputs.shape)
    if batch is None or not training or inputs.shape[0] != batch.real.size or layer.axis not in (-1, rank - 1):
        return wrapped(inputs, training=training, mask=mask, **kwargs)
    import jax.numpy as jnp

    real = jnp.broadcast_to(_spread(batch.real, rank - 1), inputs.shape[:-1]) > 0
    return wrapped(inputs, training=training, mask=real if mask is None else real & mask, **kwargs)
