"""Whether a model is built: traced once to make its variables, without a step.

Keras does so in a stateless scope, which records the values that are assigned instead of assigning them.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar

from tensorflowonspark.keras.hooks import setting

_building: ContextVar[bool] = ContextVar("a model is built", default=False)  # other threads may train meanwhile


def building() -> AbstractContextManager[None]:
    """Mark a block as one that builds: optimizers make their variables without an update, metrics take no branch."""
    return setting(_building, True)


def is_building() -> bool:
    """Return whether this is called within such a block."""
    return _building.get()
