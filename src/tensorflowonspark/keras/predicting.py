"""Keras 3's ``predict`` on several workers: each predicts all rows that it is given, whatever the others do.

Keras would have each worker predict a part of every batch, and gather the results of all workers after each one. That
waits for ever when one worker has fewer batches than another, or when the chief predicts alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import wrapt

__all__ = ["predict_alone", "predicts"]

_predicts = ContextVar("predicts", default=False)


def predicts() -> bool:
    """Return whether ``predict`` runs here: a dataset is not distributed for it."""
    return _predicts.get()


@contextmanager
def _predicting() -> Iterator[None]:
    token = _predicts.set(True)
    try:
        yield
    finally:
        _predicts.reset(token)


def predict_alone(trainer: ModuleType) -> None:
    """Have no worker wait for others in ``predict`` (called after the import of Keras's trainer)."""

    def predict(wrapped: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not trainer._collective_all_reduce_multi_worker(model.distribute_strategy):
            return wrapped(*args, **kwargs)
        with _predicting():
            return wrapped(*args, **kwargs)

    def reduce_per_replica(wrapped: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def reduced(values: Any, strategy: Any, reduction: str) -> Any:
            if reduction != "concat" or not trainer._collective_all_reduce_multi_worker(strategy):
                return wrapped(values, strategy, reduction)
            return trainer.tree.map_structure(lambda value: of_worker(strategy, value), values)

        return reduced(*args, **kwargs)

    def of_worker(strategy: Any, value: Any) -> Any:
        replicas = strategy.experimental_local_results(value)
        return replicas[0] if len(replicas) == 1 else trainer.concat(replicas)

    wrapt.wrap_function_wrapper(trainer, "TensorFlowTrainer.predict", predict)
    wrapt.wrap_function_wrapper(trainer, "reduce_per_replica", reduce_per_replica)
