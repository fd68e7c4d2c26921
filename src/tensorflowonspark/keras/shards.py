"""Shards: datasets that hold one worker's share, which a strategy must not divide again.

``strategy.experimental_distribute_dataset``, which Keras's ``fit`` calls on every dataset, expects the whole data in
global batches, and gives each worker its part of every batch. A share that Spark fed to a worker would lose rows, and
its count of steps, on which Keras and the other workers rely. A share is passed to
``distribute_datasets_from_function`` instead, unchanged. It is recognized by a ``framework_type`` in its options (where
libraries name the origin of a dataset), which survives ``map``, ``prefetch`` and all other transformations, or by its
`provenance`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tensorflowonspark.keras.feed_tracking import DataPath, has_equal_steps, row_counts
from tensorflowonspark.keras.provenance import Generator, any_reads_feed, sources
from tensorflowonspark.keras.session import session
from tensorflowonspark.keras.workers import has_several_workers

if TYPE_CHECKING:
    import tensorflow as tf

from tensorflowonspark.keras.hooks import setting, wrap

_MARK = "tensorflowonspark_shard"
_ASKS = "experimental_enable_get_next_as_optional"  # of the implementation of a strategy
_predicts = ContextVar("predicts", default=False)


@contextmanager
def predicting() -> Iterator[None]:
    """Distribute no dataset for the duration of a block, which runs ``predict``."""
    session.predicts += 1
    try:
        with setting(_predicts, True):
            yield
    finally:
        session.predicts -= 1


def is_predicting() -> bool:
    """Return whether ``predict`` of this worker runs, for which no other worker waits."""
    return session.predicts > 0


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
        if not has_several_workers(strategy):
            return wrapped(dataset, options)
        replicas = len(strategy.extended.worker_devices)  # of this worker: its GPUs, or its one CPU
        if _predicts.get() and replicas == 1:
            return dataset
        if not (_predicts.get() or is_shard(dataset) or _is_share(dataset)):
            row_counts.note_dataset(dataset, DataPath.UNKNOWN if _is_off(dataset) else DataPath.DIVIDED)
            return wrapped(_sorted(dataset), options)
        row_counts.note_dataset(dataset, DataPath.WHOLE)
        per_replica = _divided(dataset, replicas)
        with _ending_together(strategy) if _all_equal(strategy, dataset) else nullcontext():
            return strategy.distribute_datasets_from_function(lambda _context: per_replica)

    wrap(tensorflow, "distribute.Strategy.experimental_distribute_dataset", distribute)


def _all_equal(strategy: Any, dataset: Any) -> bool:
    """Return whether the datasets of all workers, which distribute theirs now, have equally many batches."""
    import tensorflow as tf

    from tensorflowonspark.keras.collectives import reduced

    if _predicts.get() or not tf.executing_eagerly():  # other workers need not predict as well
        return False
    replicas = len(strategy.extended.worker_devices)
    own = [tf.constant(float(has_equal_steps(dataset)))] * replicas
    (all_replicas,) = reduced(strategy, tf.distribute.ReduceOp.SUM, [own])
    return bool(int(all_replicas) == strategy.num_replicas_in_sync)


@contextmanager
def _ending_together(strategy: Any) -> Iterator[None]:
    """Distribute datasets that have equally many batches on all workers, for the duration of a block.

    TensorFlow would otherwise ask all workers before each step whether one of them has a batch left.
    """
    asks = vars(strategy.extended).get(_ASKS)
    if asks is None:  # another version of TensorFlow
        yield
        return
    setattr(strategy.extended, _ASKS, False)
    try:
        yield
    finally:
        setattr(strategy.extended, _ASKS, asks)


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


def _divided(dataset: Any, replicas: int) -> Any:
    """Return the dataset of one worker with each batch divided among its replicas.

    ``rebatch`` fills up a replica with rows of the next batch: the worker would take fewer steps than the others.
    """
    if replicas == 1:
        return dataset
    from tensorflow.python.data.experimental.ops.distribute import _LegacyRebatchDataset

    return _LegacyRebatchDataset(dataset, replicas)
