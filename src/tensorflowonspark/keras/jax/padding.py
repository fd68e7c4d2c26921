"""Losses and metrics over real rows only, on JAX.

As on TensorFlow (`keras.metrics`, `keras.losses`) the weight -0.0 marks a padding row. JAX compiles a step for arrays
of fixed shapes, so no rows can be taken out. Unweighted metrics receive a weight for each row instead: 1, or 0 for
padding. A loss that is averaged over the rows is averaged over the real ones, and so are the gradients: they equal
those of one process that takes the same rows as a smaller batch.
"""

import inspect
import logging
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from tensorflowonspark.keras.hooks import setting, wrap

_log = logging.getLogger(__name__)
_AVERAGING = ("auto", "mean", "sum_over_batch_size")  # reductions that divide by the number of rows
_warned: set[str] = set()


def real_rows(tree: Any, weights: Any) -> Any:
    """Return a mask of the real rows of a batch, a float32 array of 1 and 0; None if no weights can mark padding.

    Parameters
    ----------
    tree : module
        Keras's functions of nested structures.
    weights : array, nested structure of them, or None
        The sample weights. A row is padding if its weight for any output is -0.0; one with several weights (of its
        time steps) if all of them are.
    """
    import jax.numpy as jnp

    masks = []
    for weight in [each for each in tree.flatten(weights) if each is not None]:
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
    """The batch of the step that is being traced: its real rows, and the trackers of its model's losses."""

    real: Any
    averaged: bool
    loss_tracker: Any
    output_trackers: list[Any]

    @property
    def count(self) -> Any:
        return self.real.sum()

    def of_real_rows(self, loss: Any) -> Any:
        """Return a loss that was divided by the number of all rows, divided by that of the real ones."""
        import jax.numpy as jnp

        factor = self.real.size / jnp.maximum(self.count, 1.0)
        return loss * factor.astype(loss.dtype) if self.averaged else loss


_batch: ContextVar[_Batch | None] = ContextVar("batch", default=None)


def skip_padding(trainer: ModuleType) -> None:
    """Have losses and metrics leave out padding (called after the import of Keras's trainer for JAX)."""

    def step(wrapped: Any, model: Any, /, state: Any, data: Any) -> Any:
        real = real_rows(trainer.tree, trainer.data_adapter_utils.unpack_x_y_sample_weight(data)[2])
        if real is None:
            return wrapped(state, data)
        trackers = list(getattr(model._compile_loss, "metrics", []))
        with setting(_batch, _Batch(real, _is_averaged(trainer, model.loss), model._loss_tracker, trackers)):
            return wrapped(state, data)

    def compile_loss(wrapped: Any, _loss: Any, /, *args: Any, **kwargs: Any) -> Any:
        loss, batch = wrapped(*args, **kwargs), _batch.get()
        return loss if batch is None or loss is None else batch.of_real_rows(loss)

    def update_mean(wrapped: Any, mean: Any, /, values: Any, *args: Any, **kwargs: Any) -> Any:
        batch = _batch.get()
        if batch is not None and mean is batch.loss_tracker:
            return wrapped(values, sample_weight=batch.count)
        if batch is not None and any(mean is each for each in batch.output_trackers):
            return wrapped(batch.of_real_rows(values), sample_weight=batch.count)
        return wrapped(values, *args, **kwargs)

    for name in ("train_step", "test_step"):
        wrap(trainer, f"JAXTrainer.{name}", step)
    base = trainer.base_trainer
    wrap(base, "CompileLoss.call", compile_loss)
    wrap(base.metrics_module, "Mean.update_state", update_mean)
    wrap(base, "CompileMetrics.update_state", _update_metrics(trainer))


def _is_averaged(trainer: Any, losses: Any) -> bool:
    """Return whether all losses given to ``compile`` are divided by the number of rows, as they are by default."""
    return all(getattr(each, "reduction", "auto") in _AVERAGING for each in trainer.tree.flatten(losses))


def _update_metrics(trainer: Any) -> Any:
    def update_state(wrapped: Any, container: Any, /, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        real = real_rows(trainer.tree, sample_weight)
        if real is None:
            wrapped(y_true, y_pred, sample_weight)
            return
        if not container.built:
            container.build(y_true, y_pred)

        def update(unweighted: Any, weighted: Any, weights: Any) -> None:
            """Call Keras's own function, bound to a container with only these metrics."""
            part = SimpleNamespace(
                built=True, _flatten_y=container._flatten_y, _flat_metrics=unweighted, _flat_weighted_metrics=weighted
            )
            wrapped.__func__(part, y_true, y_pred, weights)

        none = [None] * len(container._flat_metrics)
        update([_WithMask.of(each, real) for each in container._flat_metrics], none, None)
        update(none, container._flat_weighted_metrics, sample_weight)

    return update_state


@dataclass(frozen=True)
class _WithMask:
    """The metrics of one output, updated with a weight for each row: 1, or 0 for padding."""

    metrics: Any
    real: Any

    @classmethod
    def of(cls, metrics: Any, real: Any) -> "_WithMask | None":
        return None if metrics is None else cls(metrics, real)

    def update_state(self, y_true: Any, y_pred: Any) -> None:
        for metric in self.metrics.metrics:
            if "sample_weight" not in inspect.signature(metric.update_state).parameters:
                _warn(metric)
                metric.update_state(y_true, y_pred)
            elif hasattr(metric, "target_class_ids"):  # metrics of images, with a weight for each pixel
                metric.update_state(y_true, y_pred, sample_weight=self._of_pixels(metric, y_true))
            else:
                metric.update_state(y_true, y_pred, sample_weight=self.real)

    def _of_pixels(self, metric: Any, y_true: Any) -> Any:
        import jax.numpy as jnp

        shape = list(y_true.shape)
        if not metric.sparse_y_true:
            del shape[metric.axis]
        return jnp.broadcast_to(self.real.reshape(-1, *[1] * (len(shape) - 1)), shape).astype("int32")


def _warn(metric: Any) -> None:
    if type(metric).__name__ not in _warned:
        _warned.add(type(metric).__name__)
        _log.warning(
            "the metric %s takes no sample_weight, so that rows which pad the last batches count in it: give its "
            "update_state that parameter",
            type(metric).__name__,
        )
