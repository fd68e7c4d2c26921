"""Datasets that hold one worker's share: a strategy takes them as they are, and does not divide them again.

``strategy.experimental_distribute_dataset``, which Keras's ``fit`` calls on every dataset, takes it for the whole
data in global batches, and gives each worker its part of every batch. A share that Spark fed to a worker would thus
lose rows, and its count of steps, on which Keras and the other workers rely. A share goes to
``distribute_datasets_from_function`` instead, as it is. It is known by a ``framework_type`` in its options (where
libraries name what made a dataset), which survives ``map``, ``prefetch`` and all other transformations, or by its
`provenance`.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from tensorflowonspark.keras.feed_tracking import DataPath, ledger
from tensorflowonspark.keras.fitting import predicts
from tensorflowonspark.keras.provenance import Generator, sources

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["mark_shard", "shard_batch_rows", "teach_strategy"]

_MARK = "tensorflowonspark_shard_of_"


def mark_shard(dataset: "tf.data.Dataset", batch_rows: int) -> "tf.data.Dataset":
    """Return the data set, marked as one worker's share in batches of so many rows."""
    import tensorflow as tf

    options = tf.data.Options()
    options.framework_type = [f"{_MARK}{batch_rows}"]
    # For strategies that are not asked for here (one process, several GPUs): divide batches, never drop any.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def shard_batch_rows(dataset: Any) -> int | None:
    """Return the rows in a batch of a marked data set, or None if it has no mark."""
    options = getattr(dataset, "options", None)
    names = (options().framework_type or []) if callable(options) else []
    marks = [name.removeprefix(_MARK) for name in names if name.startswith(_MARK)]
    return int(marks[0]) if marks else None


def teach_strategy(distribute_lib: ModuleType) -> None:
    """Make the strategies of several workers take a share as it is (called after TensorFlow's import)."""

    def distribute(wrapped: Any, strategy: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dataset = args[0] if args else kwargs["dataset"]
        if not strategy.extended._in_multi_worker_mode():
            return wrapped(*args, **kwargs)
        replicas = len(strategy.extended.worker_devices)  # of this worker: its GPUs, or its one CPU
        if predicts() and replicas == 1:
            return dataset
        rows = shard_batch_rows(dataset)
        if rows is None and not predicts() and not _is_share(dataset):
            ledger.note(dataset, DataPath.UNKNOWN if _is_off(dataset) else DataPath.DIVIDED)
            options = args[1:] if args else [kwargs["options"]] if "options" in kwargs else []
            return wrapped(_sorted(dataset), *options)
        ledger.note(dataset, DataPath.WHOLE)
        per_replica = _divided(dataset, rows, replicas)
        return strategy.distribute_datasets_from_function(lambda _context: per_replica)

    wrapt.wrap_function_wrapper(distribute_lib, "StrategyBase.experimental_distribute_dataset", distribute)


def _is_share(dataset: Any) -> bool:
    """Return whether an unmarked dataset holds rows of a feed; if it does not seem to, its generators may read none."""
    origins = sources(dataset)
    if not origins or _is_off(dataset):  # the program has decided by itself
        return False
    generators = [each for each in origins if isinstance(each, Generator)]
    if any(each.reads_feed for each in origins) or any(each.find_out() for each in generators):
        return True
    for each in generators:
        each.divided = True
    return False


def _is_off(dataset: Any) -> bool:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy is not None and policy.name == "OFF"


def _sorted(dataset: Any) -> Any:
    """Return the dataset with the indices of its sparse tensors in order, which their division into batches needs."""
    import tensorflow as tf

    def is_sparse(each: Any) -> bool:
        return isinstance(each, (tf.SparseTensor, tf.SparseTensorSpec))

    def in_order(*element: Any) -> Any:
        flat = [tf.sparse.reorder(each) if is_sparse(each) else each for each in tf.nest.flatten(element)]
        ordered = tf.nest.pack_sequence_as(element, flat)
        return ordered if len(ordered) > 1 or isinstance(dataset.element_spec, tuple) else ordered[0]

    return dataset.map(in_order) if any(map(is_sparse, tf.nest.flatten(dataset.element_spec))) else dataset


def _divided(dataset: Any, rows: int | None, replicas: int) -> Any:
    """Return the dataset of one worker with each batch divided among its replicas."""
    if replicas == 1:
        return dataset
    if rows is not None:
        return dataset.rebatch(-(-rows // replicas))
    from tensorflow.python.data.experimental.ops.distribute import _LegacyRebatchDataset

    return _LegacyRebatchDataset(dataset, replicas)
