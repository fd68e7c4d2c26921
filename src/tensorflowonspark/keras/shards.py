"""Shards: datasets that hold one worker's share, which a strategy must not divide again.

``strategy.experimental_distribute_dataset``, which Keras's ``fit`` calls on every dataset, expects the whole data in
global batches, and gives each worker its part of every batch. A share that Spark fed to a worker would lose rows, and
its count of steps, on which Keras and the other workers rely. A share is passed to
``distribute_datasets_from_function`` instead, unchanged. It is recognized by a ``framework_type`` in its options (where
libraries name the origin of a dataset), which survives ``map``, ``prefetch`` and all other transformations, or by its
`provenance`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.feed_tracking import (
    DataPath,
    FedPasses,
    StepsAhead,
    has_equal_steps,
    note_passes,
    planned_rows,
    row_counts,
)
from tensorflowonspark.keras.provenance import SHARE, Generator, add_source, any_reads_feed, sources
from tensorflowonspark.keras.workers import has_several_workers

if TYPE_CHECKING:
    import tensorflow as tf

from tensorflowonspark.keras.hooks import setting, wrap

_MARK = "tensorflowonspark_shard"
_predicts = ContextVar("predicts", default=False)
_fits = ContextVar("fit or evaluate runs", default=False)
# How many calls of `predict` run in this process: a strategy's replicas, which ask for it, have threads of their own,
# in which the context variable above has not the value that it has in the thread of the call.
_predict_calls = 0


def fitting() -> AbstractContextManager[None]:
    """Have ``fit`` and ``evaluate`` take a feed on one device only, for the duration of a block."""
    return setting(_fits, True)


def is_fitting() -> bool:
    """Return whether ``fit`` or ``evaluate`` runs in this thread."""
    return _fits.get()


@contextmanager
def predicting() -> Iterator[None]:
    """Distribute no dataset for the duration of a block, which runs ``predict``."""
    global _predict_calls  # noqa: PLW0603 - see its comment
    _predict_calls += 1
    try:
        with setting(_predicts, True):
            yield
    finally:
        _predict_calls -= 1


def is_predicting() -> bool:
    """Return whether ``predict`` of this worker runs, for which no other worker waits."""
    return _predict_calls > 0


def of_feed(dataset: "tf.data.Dataset", passes: FedPasses) -> "tf.data.Dataset":
    """Return a dataset that is known to have one worker's rows, in these passes."""
    marked = mark_shard(dataset)
    add_source(marked, SHARE)
    note_passes(marked, passes)
    return marked


def mark_shard(dataset: "tf.data.Dataset") -> "tf.data.Dataset":
    """Return a dataset that is marked as one worker's share."""
    import tensorflow as tf

    options = tf.data.Options()
    options.framework_type = [_MARK]
    options.autotune.enabled = False  # see `_without_tuning`
    # Strategies of one process with several GPUs: divide batches, and never drop any.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def is_shard(dataset: Any) -> bool:
    """Return whether a dataset is marked as one worker's share."""
    options = getattr(dataset, "options", None)
    return callable(options) and _MARK in (options().framework_type or [])


def distribute_shards_whole(tensorflow: ModuleType) -> None:
    """Have strategies of several workers take a share unchanged (called after TensorFlow's import)."""

    def distribute(wrapped: Any, strategy: Any, /, dataset: Any, options: Any = None) -> Any:
        dataset = _without_tuning(dataset)
        several = has_several_workers(strategy)
        mirrored = several or isinstance(strategy, tensorflow.distribute.MirroredStrategy)
        devices = len(strategy.extended.worker_devices) if mirrored else 1  # of this process: its GPUs, or its one CPU
        if devices > 1 and (several or (_fits.get() and (is_shard(dataset) or _is_share(dataset)))):
            raise SpecError(
                f"{type(strategy).__name__} has {devices} devices in this node, and the rows of a feed are those of "
                "one device: start a node for each GPU (nodes=Nodes(gpus_per_node=1)), and take ctx.strategy()"
            )
        if not several:
            return wrapped(dataset, options)
        if _predicts.get():
            return dataset
        if not (is_shard(dataset) or _is_share(dataset)):
            row_counts.note_dataset(dataset, DataPath.UNKNOWN if _is_off(dataset) else DataPath.DIVIDED)
            return wrapped(_sorted(dataset), options)
        row_counts.note_dataset(dataset, DataPath.WHOLE)
        if _fits.get():  # whose steps begin with a message that says whether each worker has another batch
            return PlannedDataset(dataset)
        if _all_equal(strategy, dataset):
            return dataset
        return strategy.distribute_datasets_from_function(lambda _context: dataset)

    wrap(tensorflow, "distribute.Strategy.experimental_distribute_dataset", distribute)


class PlannedDataset:
    """One worker's share, whose passes know the real rows of each batch if a feed has planned them.

    It is made of a feed's dataset batch by batch.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> "PlannedIterator":
        """Begin a pass."""
        planned = planned_rows(self._dataset)  # of the next pass, which begins with the iterator
        return PlannedIterator(iter(self._dataset), planned or ())


class PlannedIterator:
    """A pass over such a dataset: its batches, with the real rows of each and all of its rows if they are known.

    `own_weights` is whether a batch so far had weights of the program's own (`worker_step.prepared`).
    """

    def __init__(self, batches: Any, planned: StepsAhead) -> None:
        self.own_weights: Any = False
        self._batches, self._planned = batches, iter(planned)

    @property
    def element_spec(self) -> Any:
        """The shapes and types of a batch."""
        return self._batches.element_spec

    def get_next(self) -> Any:
        """Return the next batch."""
        return self._batches.get_next()

    def __next__(self) -> Any:
        """Return the next batch, or raise StopIteration."""
        return next(self._batches)

    def rows_of_batch(self) -> tuple[int, int] | None:
        """Return the real rows of the batch that was taken last, and all of them; None if they are not known."""
        return next(self._planned, None)


def _all_equal(strategy: Any, dataset: Any) -> bool:
    """Return whether the datasets of all workers, which distribute theirs now, have equally many batches."""
    import tensorflow as tf

    from tensorflowonspark.keras.tensorflow_collectives import reduced

    if not tf.executing_eagerly():
        return False
    (of_all,) = reduced(strategy, tf.distribute.ReduceOp.SUM, [[tf.constant(float(has_equal_steps(dataset)))]])
    return bool(int(of_all) == strategy.num_replicas_in_sync)


def leave_devices_untuned(tensorflow: ModuleType) -> None:
    """Tune no datasets that strategies put behind a program's, one for each device, with a buffer of a fixed size.

    Called after the import of TensorFlow.
    """

    def prefetch(wrapped: Any, dataset: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = wrapped(*args, **kwargs)
        return _without_tuning(found) if type(dataset).__module__.endswith(".multi_device_iterator_ops") else found

    wrap(tensorflow, "data.Dataset.prefetch", prefetch)


def _without_tuning(dataset: Any) -> Any:
    """Return the dataset without the thread that tunes its buffers, unless the program has asked for that.

    A strategy makes iterators for each pass, which are destroyed when the next one begins, or later, during a step.
    TensorFlow waits then for that thread, which sometimes misses its cancellation and sleeps on: for the 0.3 to 2 s
    between two looks at its buffers, and for up to a minute in long passes; and all other workers wait for this one.
    """
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset) or dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _is_share(dataset: Any) -> bool:
    """Return whether an unmarked dataset holds rows of a feed; if not, forbid its generators to read any."""
    origins = sources(dataset)
    if not origins or _is_off(dataset):  # the program has decided
        return False
    if any_reads_feed(origins):
        return True
    for each in origins:
        if isinstance(each, Generator):
            each.divided = True
    return False


def _is_off(dataset: Any) -> bool:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy is not None and policy.name == "OFF"


def _sorted(dataset: Any) -> Any:
    """Return the dataset with sorted indices of its sparse tensors, which their division into batches needs."""
    import tensorflow as tf

    def is_sparse(each: Any) -> bool:
        return isinstance(each, (tf.SparseTensor, tf.SparseTensorSpec))

    def in_order(*element: Any) -> Any:
        flat = [tf.sparse.reorder(each) if is_sparse(each) else each for each in tf.nest.flatten(element)]
        ordered = tf.nest.pack_sequence_as(element, flat)
        return ordered if len(ordered) > 1 or isinstance(dataset.element_spec, tuple) else ordered[0]

    return dataset.map(in_order) if any(map(is_sparse, tf.nest.flatten(dataset.element_spec))) else dataset
