"""Devices of the nodes that a program is connected to (`Context.connect`), and optimizers' variables on them."""

from __future__ import annotations  # TensorFlow imports this module while it is incomplete itself

from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras.hooks import setting, wrap
from tensorflowonspark.keras.workers import has_several_workers

_LOCAL_JOBS = (None, "localhost")  # of a process that is connected to no other one
_placing: ContextVar[bool] = ContextVar("layers are placed on other nodes", default=True)


def node_devices() -> dict[str, str]:
    """Return the device of each node that this process is connected to: its first GPU, or else its CPU.

    The keys are the names of nodes: ``{"worker:1": "/job:worker/replica:0/task:1/device:CPU:0"}``. There are none in a
    process that is connected to no other one, and while a model is exported.

    Examples
    --------
    >>> node_devices()
    {}
    """
    devices: dict[str, str] = {}
    if not _placing.get():
        return devices
    for kind in ("CPU", "GPU"):
        found: dict[str, str] = {}
        for device in tf.config.list_logical_devices(kind):
            spec = tf.DeviceSpec.from_string(device.name)
            if spec.job not in _LOCAL_JOBS:
                found.setdefault(f"{spec.job}:{spec.task}", device.name)
        devices.update(found)
    return devices


def without_placement() -> AbstractContextManager[None]:
    """Have placed layers computed where they are called for the duration of a block, as in a model that is exported."""
    return setting(_placing, False)


def place_slots(keras: ModuleType) -> None:
    """Have optimizers make the variables that belong to a weight on its device (called after the import of Keras).

    Keras asks the strategy to do so, and without one that has no effect: all would be on the chief.
    """

    def add(wrapped: Any, optimizer: Any, /, reference_variable: Any, *rest: Any, **options: Any) -> Any:
        from tensorflowonspark.keras.worker_step import current_step

        step = current_step()
        strategy = tf.distribute.get_strategy() if step is None else step.strategy
        if has_several_workers(strategy):  # also of an optimizer that was made outside of its scope
            optimizer._distribution_strategy = strategy
        if step is not None:  # an optimizer that its first step builds: its variables are made as the weights are
            with tf.init_scope(), strategy.scope():
                return wrapped(reference_variable, *rest, **options)
        weight = getattr(reference_variable, "value", reference_variable)
        if tf.distribute.has_strategy() or not getattr(weight, "device", ""):
            return wrapped(reference_variable, *rest, **options)
        with tf.device(weight.device):
            return wrapped(reference_variable, *rest, **options)

    wrap(keras, "Optimizer.add_variable_from_reference", add)
