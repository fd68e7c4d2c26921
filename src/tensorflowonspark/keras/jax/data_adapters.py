"""The data of ``fit``, ``evaluate`` and ``predict`` on JAX: what Keras reads it through.

Keras makes an adapter of whatever a program passes. Here it also makes one of ``ctx.batches(...)``, and on several
workers it reads through another, whose batches are of equal size on all of them (`equal_batches`). Class weights beside
the weights of rows, which Keras refuses for datasets, are multiplied here.
"""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.feed_tracking import FedPasses, StepsAhead, batch_rows, pass_length, planned_rows
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.jax.equal_batches import ENDLESS, UNCOUNTED, Padding, WorkerPass, equal_sized, reader
from tensorflowonspark.keras.jax.jax_processes import current, trains_together
from tensorflowonspark.keras.jax.short import Short
from tensorflowonspark.keras.pass_steps import skipped_steps

_DENSE = {"RaggedTensorSpec": "x.to_tensor(shape=(None, length))", "SparseTensorSpec": "tf.sparse.to_dense(x)"}


def adapt_data(adapters: ModuleType) -> None:
    """Have Keras read data as this package needs it (called after the import of its ``data_adapters``)."""

    def get_data_adapter(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = dict(inspect.signature(wrapped).bind(*args, **kwargs).arguments)
        data = bound["x"]
        is_feed = reads_feed(data)
        class_weight = bound.get("class_weight") if is_feed or is_dataset(data) else None
        if class_weight is not None:
            bound["class_weight"] = None
        if is_feed:
            adapter: Any = FeedAdapter(data)
        else:
            with _whole(data):
                adapter = wrapped(**bound)
        several = trains_together()
        if several:
            _refuse_sparse(data)
            _require_weights(data)
        if not is_feed and class_weight is None and not several:
            return adapter
        return BatchAdapter(adapter, data, class_weight, several, bound.get("steps_per_epoch"))

    wrap(adapters, "get_data_adapter", get_data_adapter)


def reads_feed(data: Any) -> bool:
    """Return whether data is ``ctx.batches(...)``."""
    return bool(getattr(data, "reads_feed", False)) and hasattr(data, "element_spec")


def is_dataset(data: Any) -> bool:
    """Return whether data is a ``tf.data.Dataset``; imports no TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(data, tensorflow.data.Dataset)


@contextmanager
def _whole(data: Any) -> Iterator[None]:
    """Have Keras leave the rows of a feed as they are, which are already one worker's share."""
    import keras

    distribution = keras.distribution.distribution()
    if current() is None or not getattr(distribution, "auto_shard_dataset", False) or not is_share(data):
        yield
        return
    distribution.auto_shard_dataset = False
    try:
        yield
    finally:
        distribution.auto_shard_dataset = True


def is_share(data: Any) -> bool:
    """Return whether data has rows of a feed, and so one worker's share of them."""
    from tensorflowonspark.keras.shards import is_shard

    if is_shard(data):
        return True
    if not is_dataset(data):
        return False
    from tensorflowonspark.keras.provenance import any_reads_feed, sources

    return any_reads_feed(sources(data))


def _refuse_sparse(data: Any) -> None:
    if not is_dataset(data):
        return
    import keras

    for each in keras.tree.flatten(data.element_spec):
        kind = type(each).__name__
        if kind in _DENSE:
            raise SpecError(
                f"the dataset has {kind.removesuffix('TensorSpec').lower()} values: on JAX the workers take arrays of "
                f"one shape. Make them dense: dataset.map(lambda x, *rest: ({_DENSE[kind]}, *rest))"
            )


def _require_weights(data: Any) -> None:
    """Refuse a dataset of a feed without the weights, which mark the rows that pad its last batches."""
    if not reader().needs_weights or not is_dataset(data) or not is_share(data):
        return
    spec = data.element_spec
    if not isinstance(spec, tuple) or len(spec) < 3 or spec[2] is None:  # noqa: PLR2004 - features, labels, weights
        raise SpecError(
            f"model.{reader().call}: the dataset comes from ctx.dataset, and has lost the weights of its rows: on JAX "
            "they mark rows that pad the last batches, which would count. Keep them: "
            "dataset.map(lambda x, y, weights: (..., ..., weights))"
        )


class FeedAdapter:
    """Passes over the batches of ``ctx.batches(...)``."""

    has_partial_batch = batch_size = partial_batch_size = None

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.pass_length: FedPasses | None = batches.passes if batches.passes.arrive else None

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Begin a pass."""
        return iter(self._batches)

    get_jax_iterator = get_numpy_iterator

    @property
    def num_batches(self) -> int | None:
        """The number of batches in a pass, if it is known."""
        steps: int | None = self._batches.passes.steps
        return steps

    def on_epoch_begin(self) -> None:
        """Do nothing: Keras calls it."""

    on_epoch_end = on_epoch_begin


class BatchAdapter:
    """Passes over the batches of another adapter, as this package needs them.

    `data` is what that one reads. The weights of rows are multiplied by those of their classes. `several` is whether
    several workers take each step together, and `steps_per_epoch` what the program gave.
    """

    def __init__(
        self,
        adapter: Any,
        data: Any,
        class_weight: dict[int, float] | None,
        several: bool,
        steps_per_epoch: int | None = None,
    ) -> None:
        self._adapter = adapter
        self._class_weight = class_weight
        self._pass: WorkerPass | None = None
        self._data = data
        self.pass_length = pass_length(data) if is_dataset(data) else getattr(adapter, "pass_length", None)
        if several:
            steps = _steps(adapter, data, self.pass_length)
            # A map may drop rows of a feed's batches. Where a program makes other batches, their number is not known.
            rows = batch_rows(data) if is_dataset(data) and steps != UNCOUNTED else 0
            self._pass = WorkerPass(steps, steps_per_epoch, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def get_jax_iterator(self, super_batch: int | None = None) -> Iterator[Any]:
        """Begin a pass.

        Keras takes `super_batch` batches as one array (from version 3.16, for ``steps_per_execution``).
        """
        batches = self._adapter.get_jax_iterator()
        if self._class_weight is not None:
            batches = (weighted(each, self._class_weight) for each in batches)
        if self._pass is not None:
            batches = equal_sized(batches, self._ahead(self._pass), self._padding())
        return stacked(batches, super_batch) if super_batch else batches

    def _ahead(self, whole: WorkerPass) -> WorkerPass:
        """Return the next pass, which may begin within an epoch."""
        return replace(whole, steps=whole.steps - skipped_steps()) if isinstance(whole.steps, int) else whole

    def _padding(self) -> Padding:
        """Return what is known of the rows that fill up the batches of the next pass."""
        if reads_feed(self._data):
            passes = self._data.passes
            return Padding(True, _real(passes.steps_ahead()), passes.batch_rows)
        if not is_dataset(self._data) or not is_share(self._data):
            return Padding()
        return Padding(True, _real(planned_rows(self._data)), batch_rows(self._data))


def _real(ahead: StepsAhead | None) -> list[int] | None:
    return None if ahead is None else [real for real, _ in ahead]


def _steps(adapter: Any, data: Any, length: FedPasses | None) -> int | str | None:
    """Return the number of batches in a pass, as in `WorkerPass`."""
    if adapter.num_batches is not None:
        return int(adapter.num_batches)
    if length is not None:
        return None
    return ENDLESS if is_dataset(data) and data.cardinality() == -1 else UNCOUNTED  # tf.data.INFINITE_CARDINALITY


def stacked(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield so many batches as one, with a first dimension of that length; fewer where their kind changes, or end."""
    import keras

    def kind(batch: Any) -> list[Any]:
        return [(each.shape, getattr(each, "rows", None)) for each in keras.tree.flatten(batch)]

    def stack(*parts: Any) -> Any:
        if not isinstance(parts[0], Short):
            return np.stack(parts)
        arrays, masks = ([getattr(each, name) for each in parts] for name in ("array", "real"))
        return Short(np.stack(arrays), np.stack(masks), parts[0].rows)

    waiting: list[Any] = []
    for each in batches:
        if waiting and kind(each) != kind(waiting[0]):
            yield keras.tree.map_structure(stack, *waiting)
            waiting = []
        waiting.append(each)
        if len(waiting) == count:
            yield keras.tree.map_structure(stack, *waiting)
            waiting = []
    if waiting:
        yield keras.tree.map_structure(stack, *waiting)


def weighted(batch: Any, class_weight: dict[int, float]) -> Any:
    """Return a batch whose weights are multiplied by those of its rows' classes.

    Examples
    --------
    >>> weighted((np.zeros((3, 1)), np.array([0, 1, 7])), {1: 2.0})[2].tolist()
    [1.0, 2.0, 1.0]
    """
    import keras

    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if y is None or keras.tree.is_nested(y) or keras.tree.is_nested(weights):
        raise SpecError("class_weight is for a model with one output, whose labels are one array")
    labels = np.asarray(y)
    if labels.ndim > 1:
        labels = labels.argmax(-1) if labels.shape[-1] > 1 else labels[..., 0]
    factors = np.ones(labels.shape, np.float32)
    for number, weight in class_weight.items():
        factors[np.rint(labels) == number] = weight
    if weights is None:
        return x, y, factors
    return x, y, np.asarray(weights) * factors  # padding stays -0.0, since a class's weight is not negative
