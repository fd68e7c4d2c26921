"""Devices of the nodes that a program is connected to (`Context.connect`), and optimizers' variables on them."""

from __future__ import annotations  # TensorFlow imports this module while it is incomplete itself

from types import ModuleType
from typing import Any

import tensorflow as tf

from tensorflowonspark.keras import wrap

__all__ = ["node_devices", "place_slots"]

_LOCAL_JOB = "localhost"  # of a process that is connected to no other one


def node_devices() -> dict[str, str]:
    """Return the device of each node that this process is connected to: its first GPU, or else its CPU.

    Returns
    -------
    dict
        The name of a device by that of its node, as in ``{"worker:1": "/job:worker/replica:0/task:1/device:CPU:0"}``.
        Empty in a process that is connected to no other one.

    Examples
    --------
    >>> node_devices()
    {}
    """
    devices: dict[str, str] = {}
    for kind in ("CPU", "GPU"):
        found: dict[str, str] = {}
        for device in tf.config.list_logical_devices(kind):
            spec = tf.DeviceSpec.from_string(device.name)
            if spec.job != _LOCAL_JOB:
                found.setdefault(f"{spec.job}:{spec.task}", device.name)
        devices.update(found)
    return devices


def place_slots(module: ModuleType) -> None:
    """Have optimizers make the variables that belong to a weight on its device (called after their import).

    Keras asks the strategy to do so, and without one that has no effect: all would be on the chief.
    """

    def add(wrapped: Any, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def on_device(reference_variable: Any, *rest: Any, **options: Any) -> Any:
            weight = getattr(reference_variable, "value", reference_variable)
            if tf.distribute.has_strategy() or not getattr(weight, "device", ""):
                return wrapped(reference_variable, *rest, **options)
            with tf.device(weight.device):
                return wrapped(reference_variable, *rest, **options)

        return on_device(*args, **kwargs)

    wrap(module, "TFOptimizer.add_variable_from_reference", add)
