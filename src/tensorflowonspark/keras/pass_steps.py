"""The steps of a pass of Keras 3 over its data: where it begins, and where it ends; imports no TensorFlow."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tensorflowonspark.keras.feed_tracking import FedPasses, pass_length
from tensorflowonspark.keras.hooks import wrap


@dataclass
class _Steps:
    """What the parts of Keras that take part in a pass know of it by no other way: they are wrapped one by one."""

    first: int = 0  # with which step of its epoch the next pass begins
    skipped: int = 0  # the steps of its epoch that the latest pass leaves out
    length: FedPasses | None = None  # of the current pass, if it becomes known only in it


_steps = _Steps()  # of this process, in which Keras runs one pass at a time


def skip_steps(steps: int) -> None:
    """Have the next pass of Keras 3's ``fit`` begin with this step; its dataset has the rest of the epoch."""
    _steps.first = steps


def skipped_steps() -> int:
    """Return how many steps of its epoch the latest pass leaves out."""
    return _steps.skipped


def begin_within_epochs(trainer: ModuleType) -> None:
    """Let a pass begin within an epoch (called after the import of Keras's trainer for TensorFlow or JAX)."""

    def steps(wrapped: Any, iterator: Any, /, *args: Any, **kwargs: Any) -> Any:
        first, _steps.first = _steps.first, 0
        _steps.skipped = first
        length = None if iterator.steps_per_epoch else _length_of(iterator.data_adapter)
        _steps.length = length
        # Keras's generator yields numbers and the dataset's iterator, so that a skipped element takes no batch.
        for each in wrapped(*args, **kwargs):
            # Without this, Keras takes a step more than there are, counts it, and warns of missing data.
            if length is not None and each[0] and not length.has_step(each[0]):
                return
            if each[0] >= first:
                yield each

    (iterator,) = {"TFEpochIterator", "JAXEpochIterator"} & set(vars(trainer))
    wrap(trainer, f"{iterator}._enumerate_iterator", steps)


def _length_of(adapter: Any) -> FedPasses | None:
    """Return the length recorded for Keras's data; other kinds than datasets would be converted to ask for it."""
    if hasattr(adapter, "pass_length"):  # an adapter of this package
        length: FedPasses | None = adapter.pass_length
        return length
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter  # its import is complete by now

    return pass_length(adapter.get_tf_dataset()) if isinstance(adapter, TFDatasetAdapter) else None


def show_known_steps(keras: ModuleType) -> None:
    """Show the steps known so far in the progress bar of a pass whose length becomes known only in it.

    Called after the import of Keras.
    """

    def update(wrapped: Any, logger: Any, /, batch: int, *args: Any, **kwargs: Any) -> Any:
        length = _steps.length
        if logger.target is None and length is not None and logger.progbar is not None:
            logger.progbar.target = max(length.known_steps, batch + 2)  # at its target the bar would end its line
        return wrapped(batch, *args, **kwargs)

    for each in ("train", "test", "predict"):
        wrap(keras, f"callbacks.ProgbarLogger.on_{each}_batch_end", update)
