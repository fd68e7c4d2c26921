"""Events of ``fit``: its epochs, steps and metrics, without a callback of the user's.

Keras and tf_keras call all callbacks through a ``CallbackList``, whose methods are wrapped here. This module imports
neither.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

from tensorflowonspark.keras.hooks import wrap


class TrainingListener(Protocol):
    """What is called, in the thread that trains."""

    def epoch_began(self, epoch: int, steps: int | None) -> None:
        """Note that an epoch begins; its number of steps may be unknown."""

    def step_ended(self, step: int, logs: Mapping[str, Any] | None) -> None:
        """Note that a step has ended; `step` counts from 0 within the epoch."""

    def pause(self) -> None:
        """Note that the program evaluates."""

    def evaluated(self) -> None:
        """Note that the program has evaluated."""

    def epoch_ended(self, epoch: int, logs: Mapping[str, Any] | None, *, shown: bool) -> None:
        """Note that an epoch has ended with its validation; `shown` if Keras prints its metrics."""


_listener: TrainingListener | None = None  # receives the events of every `fit` of this process
_kept: tuple[int, Mapping[str, Any]] | None = None  # the epoch that ends, and the metrics that its history takes


def connect(listener: TrainingListener | None) -> None:
    """Make a listener the one that is called in this process."""
    global _listener  # noqa: PLW0603 - the methods of Keras that report to it are wrapped for the whole process
    _listener = listener


def follow_fit(keras: ModuleType) -> None:
    """Report the events of ``fit`` (called after the import of Keras, or of tf_keras)."""
    for method, (report, after) in _EVENTS.items():
        wrap(keras, f"callbacks.CallbackList.{method}", _reporting(report, after=after))
    wrap(keras, "callbacks.History.on_epoch_end", _keeping)


def _reporting(report: Callable[..., None], *, after: bool) -> Callable[..., Any]:
    """Return a wrapper of a method that reports its call: before the callbacks, or after they have run."""

    def method(wrapped: Any, callbacks: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not after and _listener is not None:
            report(_listener, callbacks, *args, **kwargs)
        result = wrapped(*args, **kwargs)
        if after and _listener is not None:
            report(_listener, callbacks, *args, **kwargs)
        return result

    return method


def _keeping(wrapped: Any, _history: Any, /, epoch: int, logs: Any = None) -> Any:
    """Keep the metrics of an epoch with those that callbacks have added: Keras gives the callbacks a copy."""
    global _kept  # noqa: PLW0603 - until `_epoch_ended`, in the same thread
    _kept = epoch, dict(logs or {})
    return wrapped(epoch, logs)


def _epoch_began(listener: TrainingListener, callbacks: Any, epoch: int, logs: Any = None) -> None:  # noqa: ARG001
    listener.epoch_began(epoch, (callbacks.params or {}).get("steps"))


def _step_ended(listener: TrainingListener, callbacks: Any, batch: int, logs: Any = None) -> None:  # noqa: ARG001
    listener.step_ended(batch, logs)


def _epoch_ended(listener: TrainingListener, callbacks: Any, epoch: int, logs: Any = None) -> None:
    global _kept  # noqa: PLW0603
    if _kept is not None and _kept[0] == epoch:
        logs = _kept[1]
    _kept = None
    shown = any(type(each).__name__ == "ProgbarLogger" for each in callbacks.callbacks)
    listener.epoch_ended(epoch, logs, shown=shown)


_EVENTS: dict[
    str, tuple[Callable[..., None], bool]
] = {  # with whether to report after the callbacks, which add metrics
    "on_epoch_begin": (_epoch_began, False),
    "on_train_batch_end": (_step_ended, False),
    "on_test_begin": (lambda listener, *_, **__: listener.pause(), False),
    "on_test_end": (lambda listener, *_, **__: listener.evaluated(), True),
    "on_epoch_end": (_epoch_ended, True),
}
