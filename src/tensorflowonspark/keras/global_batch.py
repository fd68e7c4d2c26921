"""Steps that know the rows of the global batch: those of all replicas together.

Keras divides a loss by the number of a replica's own rows (or of its unmasked time steps, or the sum of its weights),
and adds up the gradients of all replicas, divided by their number: the mean of means. That is the mean over all rows
only if all replicas have as many. They have not in a short last batch, with a batch size that can't be divided evenly,
or beside a worker whose rows are at an end.

Here a replica's mean counts by its share of the rows. What is divided by anything else is divided by the sum over all
replicas (`losses`). In Keras's own steps the gradients are multiplied by the replica's rows, summed together with these
rows, in one message, and divided by their sum: a message of its own for the rows would make each step wait twice for
all workers. Where the way back to the gradients may not be linear, or is of 16 bits, the loss is multiplied by the
share, for which the rows are summed first. In a ``train_step`` or ``compute_loss`` of a model's own, which adds terms
that know nothing of replicas, the gradients are (`own_losses`). What decides is in the program and its graph, which are
the same on all workers.

Padding rows are taken out of a batch before the step, unless it consists of nothing else.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.hooks import is_own, setting
from tensorflowonspark.keras.loss_terms import COUNT, KERAS, SUM, is_of_keras, mark, may_be_loss, terms
from tensorflowonspark.keras.metrics import real_rows
from tensorflowonspark.keras.step_logs import of_all_replicas

_WEIGHT = "sample_weight"
_LIBRARIES = ("builtins", "keras.", "tensorflow.")
# A program that uses one of these divides its losses by itself.
_DIVIDING = {"num_replicas_in_sync", "compute_average_loss", "scale_regularization_loss"}


@dataclass
class GlobalStep:
    """The step that one of several replicas takes, or whose graph is made.

    Attributes
    ----------
    model : keras.Model
        The model.
    own : tf.Tensor
        The number of this replica's real rows.
    real : tf.Tensor or None
        A mask of the real rows, if any may be padding.
    name : str
        The model's own function whose gradients are multiplied by the share; empty if losses are.
    divisor : float
        By what the model's own function divides its losses itself: the number of replicas, or 1.
    notes : dict
        What stays known when a graph is made anew.
    trains : bool
        Whether the step computes gradients.
    late : bool
        Whether Keras's own step doesn't multiply its losses by the share, but its gradients.
    weighted : bool
        Whether gradients have been multiplied.
    divisors : list of tf.Tensor
        By what all replicas' losses are divided, in their order.
    known : tf.Tensor or None
        The number of all replicas' real rows, if the step has asked for it.
    is_compiled : bool
        Whether XLA compiles the present graph.
    graph : tf.Graph
        The step's own graph, the only one in which replicas can communicate.
    """

    model: Any
    own: tf.Tensor
    real: tf.Tensor | None
    name: str
    divisor: float
    notes: dict[str, bool]
    trains: bool
    late: bool
    weighted: bool = False
    divisors: list[tf.Tensor] = field(default_factory=list)
    known: tf.Tensor | None = None  # no `functools.cached_property`, in which one replica's thread locks the others out
    is_compiled: bool = False
    graph: Any = field(default_factory=tf.compat.v1.get_default_graph)

    @property
    def here(self) -> bool:
        """Whether operations are added to the step's own graph."""
        return tf.compat.v1.get_default_graph() is self.graph

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Learn what a graph needs of all replicas, before it is made."""
        late = self.late
        yield
        self.late = late

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Have the present graph, in which replicas can't communicate, divide by the same as the step's own one."""
        own, divisors = self.graph, list(self.divisors)
        self.graph, self.is_compiled = tf.compat.v1.get_default_graph(), True
        try:
            yield
        finally:
            self.graph, self.divisors, self.is_compiled = own, divisors, False

    def of_all(self, divisor: tf.Tensor) -> tf.Tensor:
        """Return the sum of a divisor over all replicas."""
        if self.is_compiled:
            return self.divisors.pop(0)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, divisor)
        self.divisors.append(total)
        return total

    @property
    def all(self) -> tf.Tensor:
        """The number of all replicas' real rows, for which the step waits for all of them."""
        if self.known is None:
            self.known = mark(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, self.own))
        return self.known

    @property
    def share(self) -> tf.Tensor:
        """The replica's share of the real rows."""
        return mark(tf.math.divide_no_nan(self.own, self.all))

    @property
    def any(self) -> tf.Tensor:
        """1 if the replica has real rows, else 0."""
        return mark(tf.cast(self.own > 0, tf.float32))

    def part(self, loss: Any, kind: str) -> Any:
        """Return a mean or a sum over this replica's rows as the step takes it."""
        if not self.name and kind == SUM:
            loss *= tf.cast(self.any, loss.dtype)
            return mark(tf.math.divide_no_nan(loss, tf.cast(self.share, loss.dtype)) if self.late else loss, KERAS)
        if self.late:
            return mark(tf.identity(loss), KERAS)
        share = tf.cast(self.share, loss.dtype)
        if not self.name:
            return mark(loss * share, KERAS)
        return mark((tf.math.divide_no_nan(loss, share) if kind == SUM else loss) / self.divisor, KERAS)

    def total(self, loss: Any) -> Any:
        """Return the sum of all parts: what the gradients are computed of."""
        known = self.known is not None
        if self.late and self.trains and (known or not (self.is_compiled or _can_weigh_gradients(self.model))):
            loss, self.late = loss * tf.cast(self.share, loss.dtype), False
        return mark(loss, KERAS)

    def shown(self, loss: Any) -> Any:
        """Return the value of a part whose mean over replicas, weighted with their rows, is that of all of them."""
        if self.late:
            return loss
        of_rows = self.name and (is_of_keras(loss) or SUM not in terms(loss))
        return loss * self.divisor if of_rows else tf.math.divide_no_nan(loss, tf.cast(self.share, loss.dtype))

    def contribution(self, value: Any) -> Any:
        """Return what this replica adds to a sum over replicas that is the value of all rows together."""
        found = terms(value)
        if found & {SUM, COUNT}:
            return value * tf.cast(self.any, value.dtype) / (self.divisor if SUM in found else 1.0)
        value = self.shown(value) if is_of_keras(value) else value
        return value * tf.cast(self.share, value.dtype)


_current: ContextVar[GlobalStep | None] = ContextVar("step", default=None)  # replicas run in threads of their own


def current_step() -> GlobalStep | None:
    """Return the step that this replica takes, if it is one of several."""
    return _current.get()


def of_replicas(strategy: Any) -> bool:
    """Return whether a strategy mirrors variables on several replicas, or workers, whose gradients it sums."""
    several_devices = isinstance(strategy, tf.distribute.MirroredStrategy) and strategy.num_replicas_in_sync > 1
    return several_devices or isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def on_replica(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a step of a model that knows the rows of all replicas."""
    strategy = model.distribute_strategy
    if not of_replicas(strategy) or strategy.num_replicas_in_sync == 1:
        return step
    own = [name for name in (step.__name__, "compute_loss") if is_own(model, name)]
    name = f"{type(model).__name__}.{own[0]}" if own else ""
    divisor = float(strategy.num_replicas_in_sync) if own and _divides(type(model)) else 1.0
    late = not own and _can_wait(model)
    notes: dict[str, bool] = {}

    def run(data: Any) -> Any:
        real = real_rows(_weights(data))
        if not _has_fixed_batches(model):
            data, real = (data, None) if real is None else _without_padding(data, real)
            data = tf.nest.map_structure(_of_any_size, data) if own else data
        rows = mark(_rows(data) if real is None else tf.reduce_sum(tf.cast(real, tf.float32)))
        known = GlobalStep(model, rows, real, name, divisor, notes, trains=step.__name__ == "train_step", late=late)
        with setting(_current, known):
            outputs = step(data)
            return of_all_replicas(model, tf.nest.map_structure(_output, outputs) if own else outputs)

    run.__name__ = step.__name__
    return run


def _can_wait(model: Any) -> bool:
    """Return whether all losses of Keras's own step may be multiplied by the share at last, or their gradients."""
    from keras.losses import Loss  # its import is complete by now

    losses = [each for each in tf.nest.flatten(model.loss) if isinstance(each, Loss)]
    reduced = all(type(each).__call__ is Loss.__call__ and each.reduction not in (None, "none") for each in losses)
    return reduced and not model.run_eagerly


def _can_weigh_gradients(model: Any) -> bool:
    """Return whether Keras's optimizer and the present graph, of a model and its loss, have gradients to multiply."""
    kind = type(model.optimizer)
    wide = all(tf.as_dtype(each.dtype) in (tf.float32, tf.float64) for each in model.trainable_weights)
    if not kind.__module__.startswith("keras.") or kind.__name__ == "LossScaleOptimizer" or not wide:
        return False
    graph = tf.compat.v1.get_default_graph().as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return not any(_is_own_gradient(node) or _is_of_16_bits(node) for node in nodes)


def _is_own_gradient(node: Any) -> bool:
    """Return whether the gradient of an operation may be a function that is not linear."""
    name = node.attr["_gradient_op_type"].s
    return "PyFunc" in node.op or bool(name and not name.startswith((b"PartitionedCall", b"StatefulPartitionedCall")))


def _is_of_16_bits(node: Any) -> bool:
    return any(each.type in (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum) for each in node.attr.values())


def _divides(kind: type) -> bool:
    """Return whether functions of a model's own class, or those that they call, use the number of replicas."""
    own = [each for each in kind.__mro__ if not each.__module__.startswith(_LIBRARIES)]
    pending = [each for owner in own for each in vars(owner).values()]
    seen = set()
    while pending:
        each = pending.pop()
        function = inspect.unwrap(getattr(each, "fget", None) or getattr(each, "__func__", each))
        if not inspect.isfunction(function) or function.__module__.startswith(_LIBRARIES) or function in seen:
            continue
        seen.add(function)
        names = set(_names(function.__code__))
        if names & _DIVIDING:
            return True
        pending += [value for name, value in function.__globals__.items() if name in names]
        pending += _enclosed(function)
    return False


def _enclosed(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty one
            yield cell.cell_contents


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant)


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


def _has_fixed_batches(model: Any) -> bool:
    """Return whether a model takes batches of one size, as one with a stateful layer does."""
    inputs = getattr(model, "inputs", None) or [None]
    return bool(getattr(inputs[0], "shape", None) and inputs[0].shape[0])


def _rows(data: Any) -> tf.Tensor:
    for each in tf.nest.flatten(data):
        if isinstance(each, tf.SparseTensor):
            return tf.cast(each.dense_shape[0], tf.float32)
        if isinstance(each, tf.RaggedTensor):
            return tf.cast(each.nrows(), tf.float32)
        if tf.is_tensor(each) and each.shape.rank != 0:
            return tf.cast(tf.shape(each)[0], tf.float32)
    return tf.ones([])


def _without_padding(data: Any, real: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Return a batch's real rows; the whole batch if there are none, since layers fail with an empty one."""
    flat = [*tf.nest.flatten(data), real]
    if any(isinstance(each, tf.SparseTensor) for each in flat):
        return data, real
    places = [place for place, each in enumerate(flat) if tf.is_tensor(each) and each.shape.rank != 0]

    def kept() -> list[Any]:
        masks = [tf.ragged if isinstance(flat[place], tf.RaggedTensor) else tf for place in places]
        return [each.boolean_mask(flat[place], real) for place, each in zip(places, masks, strict=True)]

    some = tf.reduce_any(real) & tf.logical_not(tf.reduce_all(real))
    rows = tf.cond(some, kept, lambda: [flat[place] for place in places])
    for place, values in zip(places, rows, strict=True):
        flat[place] = values
    return tf.nest.pack_sequence_as(data, flat[:-1]), flat[-1]


def _of_any_size(values: Any) -> Any:
    """Return values whose static shape has no number of rows, by which `loss_terms` knows rows."""
    if not tf.is_symbolic_tensor(values) or isinstance(values, tf.SparseTensor | tf.RaggedTensor) or not values.shape:
        return values
    return tf.compat.v1.placeholder_with_default(values, [None, *values.shape[1:]])


def _output(value: Any) -> Any:
    """Return what a model's own step returns so that the mean over replicas is the value of all rows."""
    found = terms(value) if may_be_loss(value) else ()
    if not found or (KERAS not in found and not tf.is_symbolic_tensor(value)):
        return value  # the result of a metric
    step = _current.get()
    assert step is not None
    return step.contribution(value) * tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, value.dtype)
