"""The step of one of several workers: that of an ordinary Keras program, which knows what part of the rows it has.

In ``fit`` and ``evaluate`` a worker runs the model's own ``train_step`` or ``test_step`` on its rows, as one process
would. What the workers exchange is added at places that Keras and TensorFlow document as those of a program: gradients
where a tape returns them (`gradients`), numbers by which losses are divided (`losses`), the states of metrics
(`step_logs`). Each is a sum over the workers, to which a worker contributes by its share of the rows.

A step begins with one message, in which each worker sends its number of rows (`StepBegin`).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.hooks import place_of, setting, wrap
from tensorflowonspark.keras.metrics import have_weight, real_rows
from tensorflowonspark.keras.row_kinds import Found, Of, mark
from tensorflowonspark.keras.row_operations import is_set_from_rows
from tensorflowonspark.keras.tensorflow_collectives import all_sum

_WEIGHT = "sample_weight"


@dataclass
class WorkerStep:
    """The step that this worker takes, or whose graph is made."""

    model: Any
    strategy: Any  # in whose scope the model was made; it connects the workers
    rows: tf.Tensor  # the real ones of each worker in this step, float32, shape (workers,)
    kept_rows: tf.Variable  # the same, for graphs within the step's that outlive its tensors
    rank: int
    divisors: list[tf.Tensor] = field(default_factory=list)  # of all workers' losses, in order
    is_compiled: bool = False  # whether XLA compiles the present graph, in which workers can't communicate
    graph: Any = field(default_factory=tf.compat.v1.get_default_graph)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return int(self.kept_rows.shape[0])

    @property
    def own(self) -> tf.Tensor:
        """The number of this worker's real rows."""
        return self._rows[self.rank]

    @property
    def share(self) -> tf.Tensor:
        """The worker's share of the real rows of all workers."""
        return tf.math.divide_no_nan(self.own, tf.reduce_sum(self._rows))

    @property
    def any(self) -> tf.Tensor:
        """1 if this worker has real rows, else 0."""
        return tf.cast(self.own > 0, tf.float32)

    @property
    def _rows(self) -> Any:
        here = tf.compat.v1.get_default_graph() is self.graph
        return self.rows if here or self.is_compiled else self.kept_rows.value()

    def of_all(self, divisor: tf.Tensor) -> tf.Tensor:
        """Return the sum of a divisor over all workers."""
        if self.is_compiled:
            return self.divisors.pop(0)
        (total,) = all_sum(self.strategy, [divisor])
        self.divisors.append(total)
        return total

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Have the present graph, which XLA compiles, divide by the same as the step's own one."""
        divisors = list(self.divisors)
        self.is_compiled = True
        try:
            yield
        finally:
            self.divisors, self.is_compiled = divisors, False


_current: ContextVar[WorkerStep | None] = ContextVar("step", default=None)


def current_step() -> WorkerStep | None:
    """Return the step that this worker takes, if it is one of several."""
    return _current.get()


# Whether a model is built in this thread: traced to make its variables, without a step. Keras does so in a stateless
# scope, which records what is assigned: optimizers update nothing, and metrics take no branch.
_building: ContextVar[bool] = ContextVar("building", default=False)


def building() -> AbstractContextManager[None]:
    """Have optimizers and metrics know that a model is built, for the duration of a block."""
    return setting(_building, True)


def is_building() -> bool:
    """Return whether a model is built in this thread."""
    return _building.get()


class _Replicas(int):
    """The number of replicas, which a program may keep until a step, where it counts as one."""

    def __rtruediv__(self, number: Any) -> Any:
        """Return what is divided by it."""
        return _PerReplica(number / int(self), number) if isinstance(number, int | float) else NotImplemented

    def __reduce__(self) -> Any:
        """Pickle the number alone."""
        return int, (int(self),)


class _PerReplica(float):
    """A number that was divided by the number of replicas, and is undivided in a step."""

    undivided: float

    def __new__(cls, quotient: float, undivided: float) -> "_PerReplica":
        """Return the quotient."""
        made = super().__new__(cls, quotient)
        made.undivided = undivided
        return made

    def __reduce__(self) -> Any:
        """Pickle the number alone."""
        return float, (float(self),)


def count_one_replica(tensorflow: ModuleType) -> None:
    """Have a strategy count one replica in a step, which is that of one process (called after TensorFlow's import).

    A tensor that a step divides by a number of replicas which the program has read before is not divided either.
    """
    owner, name = place_of(tensorflow, "distribute.Strategy.num_replicas_in_sync")
    original = getattr(owner, name).fget

    def num_replicas_in_sync(strategy: Any) -> int:
        return 1 if current_step() is not None else _Replicas(original(strategy))

    def operator(wrapped: Any, _tensor: Any, /, number: Any) -> Any:
        if isinstance(number, (_Replicas, _PerReplica)) and current_step() is not None:
            number = 1 if isinstance(number, _Replicas) else number.undivided
        return wrapped(number)

    setattr(owner, name, property(num_replicas_in_sync, doc=original.__doc__))
    for each in ("__truediv__", "__mul__", "__rmul__"):
        wrap(tensorflow, f"Tensor.{each}", operator)


@contextmanager
def taking(known: WorkerStep) -> Iterator[None]:
    """Take a step in a block, which leaves no trace in metrics and statistics where this worker has no rows."""
    kept = statistics(known.model)
    before = [tf.convert_to_tensor(each.value) for each in kept]
    with setting(_current, known):
        yield

    def restore() -> None:
        for variable, value in zip(kept, before, strict=True):
            variable.value.assign(value)

    # What the workers compute together is equal on all of them, also where one has no rows.
    of_rows = [is_set_from_rows(each.value) for each in kept]
    kept, before = list(compress(kept, of_rows)), list(compress(before, of_rows))
    if kept:
        tf.cond(known.own > 0, lambda: None, restore)


def within(known: WorkerStep) -> AbstractContextManager[None]:
    """Have a block belong to a step."""
    return setting(_current, known)


def statistics(model: Any) -> list[Any]:
    """Return the variables of a model, and of its metrics, that steps set themselves, from the rows that they have."""
    found = [each for metric in model.metrics for each in metric.variables]
    found += [each for each in model.non_trainable_variables if is_statistic(each)]
    return list({id(each): each for each in found}.values())


def is_statistic(weight: Any) -> bool:
    """Return whether a weight was made to be set by the layer itself; one that is frozen was made to be trained."""
    return not weight.trainable and not getattr(weight.value, "trainable", True)


def prepared(data: Any, planned: Any = None, own_weights: Any = None) -> tuple[Any, ...]:
    """Return a batch without its padding rows, the number of its real rows, and `own_weights` for the next batch.

    A batch of padding alone is kept, and one without rows gets one of padding, since layers fail without any.

    `planned` has the real rows of the batch by the feed's plan, which come first, and all of its rows. If the batch has
    another number, the program has selected rows, and if others are marked as padding while those that follow the real
    ones have weights, it has moved them: then the mark of padding decides, as without a plan.

    `own_weights` is whether an earlier batch of the pass had weights of the program's own: they marked another number
    of rows than the plan had. Such weights mark no padding.
    """
    weights = _weights(data)
    real = real_rows(weights)
    if planned is not None:
        count = tf.cast(_rows(data), tf.int32)
        of_plan = tf.range(count) < planned[0]
        by_mark = tf.ones([count], tf.bool) if real is None else real
        is_whole = tf.equal(count, planned[1])
        if real is not None:
            as_many = tf.equal(tf.reduce_sum(tf.cast(real, tf.int32)), planned[0])
            own_weights |= is_whole & ~as_many
            is_whole &= own_weights | ~(as_many & tf.reduce_any(have_weight(weights) & ~of_plan))
        real = tf.where(is_whole, of_plan, by_mark)
    rows = _rows(data) if real is None else tf.reduce_sum(tf.cast(real, tf.float32))
    flat = tf.nest.flatten(data)
    places = [place for place, each in enumerate(flat) if tf.is_tensor(each) and each.shape.rank != 0]
    of_rows = [flat[place] for place in places]
    if real is not None:
        some = tf.reduce_any(real) & tf.logical_not(tf.reduce_all(real))
        of_rows = tf.cond(some, lambda: [_selected(each, real) for each in of_rows], lambda: of_rows)
    marks = list(map(id, tf.nest.flatten(_weights(data))))
    of_rows = tf.cond(
        _rows(data) > 0,
        partial(list, of_rows),
        lambda: [_a_row(flat[place], id(flat[place]) in marks) for place in places],
    )
    for place, values in zip(places, of_rows, strict=True):
        flat[place] = values
    return tf.nest.pack_sequence_as(data, flat), rows, own_weights


def _weights(data: Any) -> Any:
    """Return the weights of a batch's rows, which mark padding."""
    if isinstance(data, dict):  # of a feed without a label
        return data.get(_WEIGHT)
    from keras.utils import unpack_x_y_sample_weight  # its import is complete by now

    try:
        x, _, weights = unpack_x_y_sample_weight(data)
    except ValueError:  # a structure of the program's own
        return None
    return x.get(_WEIGHT) if weights is None and isinstance(x, dict) else weights


def _rows(data: Any) -> tf.Tensor:
    for each in tf.nest.flatten(data):
        if isinstance(each, tf.SparseTensor):
            return tf.cast(each.dense_shape[0], tf.float32)
        if isinstance(each, tf.RaggedTensor):
            return tf.cast(each.nrows(), tf.float32)
        if tf.is_tensor(each) and each.shape.rank != 0:
            return tf.cast(tf.shape(each)[0], tf.float32)
    return tf.ones([])


def _selected(values: Any, real: tf.Tensor) -> Any:
    """Return the real rows of values."""
    if not isinstance(values, tf.SparseTensor):
        return (tf.ragged if isinstance(values, tf.RaggedTensor) else tf).boolean_mask(values, real)
    rows, *others = tf.unstack(values.indices, axis=1)
    kept = tf.gather(real, rows)
    places = tf.cumsum(tf.cast(real, rows.dtype), exclusive=True)
    indices = tf.boolean_mask(tf.stack([tf.gather(places, rows), *others], axis=1), kept)
    shape = tf.concat([tf.math.count_nonzero(real)[None], values.dense_shape[1:]], 0)
    return tf.SparseTensor(indices, tf.boolean_mask(values.values, kept), shape)


def _a_row(values: Any, is_weight: bool) -> Any:
    """Return one row of zeros in place of values without rows; a weight marks it as padding."""
    if isinstance(values, tf.RaggedTensor):
        return tf.RaggedTensor.from_row_splits(values.values, tf.zeros([2], values.row_splits.dtype))
    if isinstance(values, tf.SparseTensor):
        return tf.SparseTensor(values.indices, values.values, tf.concat([[1], values.dense_shape[1:]], 0))
    shape = tf.concat([[1], tf.shape(values)[1:]], 0)
    if values.dtype == tf.string:
        return tf.fill(shape, "")
    zeros = tf.zeros(shape, values.dtype)
    # No constant: TensorFlow keeps those of eager code by their values, and takes 0.0 for -0.0.
    return -zeros if is_weight and values.dtype.is_floating else zeros


def of_any_size(data: Any) -> Any:
    """Return a batch whose static shapes have no number of rows.

    So a graph of the first batch is that of a short one, too. The tensors are marked as values of rows.
    """

    def opened(values: Any) -> Any:
        is_tensor = isinstance(values, tf.Tensor) and tf.is_symbolic_tensor(values)
        if not is_tensor or not values.shape.rank:
            return values
        if values.shape[0] is not None:
            values = tf.compat.v1.placeholder_with_default(values, [None, *values.shape[1:]])
        return mark(values, Found(Of.ROWS))

    return tf.nest.map_structure(opened, data)
