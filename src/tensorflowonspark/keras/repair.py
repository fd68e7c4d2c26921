"""Replacements of functions of ``keras.src.backend.tensorflow.trainer`` that fail on several workers.

``model.fit`` under ``MultiWorkerMirroredStrategy`` fails with Keras 3 (keras-team/keras#20585):

- ``_maybe_symbolic_build`` takes a batch from the data and reduces it as a whole, which fails for a nested batch of
  per-replica values. The replacement builds the model from zeros with the dataset's element spec, so that no batch of a
  stream is lost either.
- ``reduce_per_replica`` requests the mean of scalars over their axis 0, which they don't have. The replacement reduces
  scalars over the workers only, and leaves results whole that every worker needs whole.

A third fails only with ``steps_per_execution`` above 1 (on several replicas of one worker too), since TensorFlow can't
test for another batch, on which all workers must agree, within a loop of a graph:

- ``_make_function``. The replacement runs the steps of one execution from Python, one after another.

A test of the installed functions, not a version number, decides whether the first two are replaced.
"""

import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from tensorflowonspark.keras.global_batch import on_replica
from tensorflowonspark.keras.steps import (
    build_in_advance,
    can_be_called,
    refuse_custom_step,
    without_compiling,
)

_log = logging.getLogger(__name__)


def repair_trainer(trainer: ModuleType) -> None:
    """Replace the broken functions of Keras's trainer (called after its import)."""
    repaired = []
    if reduction_needs_repair(trainer):
        trainer.reduce_per_replica = _repaired_reduction(trainer)  # type: ignore[attr-defined]
        repaired.append("reduce_per_replica")
    if build_needs_repair(trainer):
        trainer.TensorFlowTrainer._maybe_symbolic_build = _repaired_build(trainer)
        repaired.append("_maybe_symbolic_build")
    trainer.TensorFlowTrainer._make_function = _stepwise(trainer)
    if repaired:
        _log.info("repaired for training on several workers: %s of %s", " and ".join(repaired), trainer.__name__)


def reduction_needs_repair(trainer: ModuleType) -> bool:
    """Return whether the installed ``reduce_per_replica`` fails for a scalar, with a recording strategy."""
    axes: list[Any] = []
    strategy = _recording_strategy(trainer, axes)
    try:
        trainer.reduce_per_replica(1.0, strategy, "mean")  # no tensor, which would start TensorFlow
    except Exception:
        return True
    return axes != [None]


def _recording_strategy(trainer: ModuleType, axes: list[Any]) -> Any:
    """Return a strategy that looks like one of several workers to the trainer, and records the axes of reductions."""

    class Extended:
        worker_devices = ("/device:CPU:0",)

        def _in_multi_worker_mode(self) -> bool:
            return True

    class Recording(trainer.tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[name-defined]
        def __init__(self) -> None:
            pass  # connects to no cluster

        @property
        def extended(self) -> Any:
            return Extended()

        def reduce(self, _operation: Any, value: Any, axis: Any = None) -> Any:
            axes.append(axis)
            return value

    return Recording()


def _repaired_reduction(trainer: ModuleType) -> Callable[..., Any]:
    original = trainer.reduce_per_replica

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        several_workers = trainer._collective_all_reduce_multi_worker(strategy)
        if several_workers and reduction in ("auto", "mean"):
            return trainer.tree.map_structure(lambda value: mean(strategy, value), values)
        return original(values, strategy, reduction)

    def mean(strategy: Any, value: Any) -> Any:
        if not isinstance(value, trainer.tf.distribute.DistributedValues):
            # The reduction needs the device of a value; a metric that returns a variable has none.
            with trainer.tf.device(strategy.extended.worker_devices[0]):
                value = trainer.tf.identity(trainer.tf.convert_to_tensor(value))
        return strategy.reduce("MEAN", value, axis=None)

    return reduce_per_replica


def build_needs_repair(trainer: ModuleType) -> bool:
    """Return whether the installed ``_maybe_symbolic_build`` reduces a nested batch as a whole.

    A call would need a model and a cluster, so the names that the function uses decide.
    """
    function = getattr(trainer.TensorFlowTrainer, "_maybe_symbolic_build", None)
    return function is not None and "reduce" in _names(function)


def _names(function: Callable[..., Any]) -> set[str]:
    """Return all names that a function and its nested functions use."""
    found: set[str] = set()
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        found.update(code.co_names)
        pending.extend(constant for constant in code.co_consts if inspect.iscode(constant))
    return found


def _repaired_build(trainer: ModuleType) -> Callable[..., None]:
    original = trainer.TensorFlowTrainer._maybe_symbolic_build

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if self._distribute_strategy is not None and iterator is not None:
            try:
                spec = iterator.data_adapter.get_tf_dataset().element_spec
                data_batch = trainer.tree.map_structure(partial(_zeros, trainer.tf, _batch_rows(self)), spec)
                iterator = None
            except TypeError:  # Keras may still build it
                pass
        if self._distribute_strategy is None or can_be_called(self):
            with _ragged_kept(trainer, data_batch):
                original(self, iterator=iterator, data_batch=data_batch)
        if self._distribute_strategy is not None and data_batch is not None:
            build_in_advance(trainer, self, data_batch)

    return _maybe_symbolic_build


def _zeros(tf: Any, rows: int, spec: Any) -> Any:
    """Return zeros with a dataset's element spec and a number of rows."""
    if isinstance(spec, tf.TensorSpec):
        shape = [1 if size is None else size for size in spec.shape]
        if shape and spec.shape[0] is None:
            shape[0] = rows
        return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
    if isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        dense = _zeros(tf, rows, tf.TensorSpec(spec.shape, spec.dtype))
        if isinstance(spec, tf.SparseTensorSpec):
            return tf.sparse.from_dense(dense)
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank) if spec.ragged_rank else dense
    values = getattr(spec, "_value_specs", None)  # one for each replica, in the spec of a distributed dataset
    if values is None:
        raise TypeError(f"no zeros of {spec}")
    return _zeros(tf, rows, values[0])


def _batch_rows(model: Any) -> int:
    """Return the fixed batch size of a model, as one with a stateful layer has, or 1 if it takes any."""
    inputs = getattr(model, "inputs", None) or [None]
    return getattr(inputs[0], "shape", [None])[0] or 1


def _several_replicas(trainer: ModuleType, strategy: Any) -> bool:
    mirrored = isinstance(strategy, trainer.tf.distribute.MirroredStrategy) and strategy.num_replicas_in_sync > 1
    return mirrored or bool(trainer._collective_all_reduce_multi_worker(strategy))


@contextmanager
def _ragged_kept(trainer: ModuleType, batch: Any) -> Iterator[None]:
    """Have Keras build with the ragged values of a batch, of which it would make dense symbols."""
    pending = deque(each for each in trainer.tree.flatten(batch) if each is not None)
    if not any(isinstance(each, trainer.tf.RaggedTensor) for each in pending):
        yield
        return
    backend = trainer.base_trainer.backend
    plain = backend.KerasTensor

    def symbol(shape: Any, dtype: Any) -> Any:
        value = pending.popleft()
        if not pending:
            backend.KerasTensor = plain
        return value if isinstance(value, trainer.tf.RaggedTensor) else plain(shape, dtype)

    backend.KerasTensor = symbol
    try:
        yield
    finally:
        backend.KerasTensor = plain


def _stepwise(trainer: ModuleType) -> Callable[..., Any]:
    tf = trainer.tf
    original = trainer.TensorFlowTrainer._make_function

    def _make_function(self: Any, step_function: Callable[..., Any]) -> Any:
        strategy = self.distribute_strategy
        refuse_custom_step(trainer, self, step_function.__name__)
        step_function = on_replica(trainer, self, step_function)
        if self.steps_per_execution == 1 or not _several_replicas(trainer, strategy):
            with without_compiling(self):
                return original(self, step_function)

        @tf.autograph.experimental.do_not_convert
        def one_step(data: Any) -> Any:
            outputs = strategy.run(step_function, args=(data,))
            return trainer.reduce_per_replica(outputs, strategy, reduction="auto")

        @tf.autograph.experimental.do_not_convert
        def fetch(iterator: Any) -> Any:
            return iterator.get_next()

        # Two graphs: in one, operations that need no data (the optimizer's count of steps) would run before TensorFlow
        # finds the end of the data.
        step, next_batch = (
            (one_step, fetch)
            if self.run_eagerly
            else (tf.function(each, reduce_retracing=True) for each in (one_step, fetch))
        )

        def steps(iterator: Any) -> Any:
            if inspect.isgenerator(iterator):  # of `train_on_batch`, with one batch
                return step(next(iterator))
            outputs = None
            try:
                for _ in range(self.steps_per_execution):
                    outputs = step(next_batch(iterator))
            except tf.errors.OutOfRangeError:  # an epoch's last execution may have fewer steps, but at least one
                if outputs is None:
                    raise
            return outputs

        return steps

    return _make_function
