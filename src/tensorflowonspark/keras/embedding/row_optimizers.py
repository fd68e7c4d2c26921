"""Optimizers of the rows of a table: SGD, Adagrad and lazy Adam, with the formulas and defaults of Keras.

They update the rows that have a gradient, and no others. A row whose gradient is zero throughout, as of an id that
occurs in padding rows only, is not updated. Adam is *lazy*: the moments of other rows do not decay, while the bias
correction counts all steps.

References: Duchi, Hazan, Singer, "Adaptive subgradient methods for online learning and stochastic optimization", JMLR
12, 2011; Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tensorflowonspark.errors import SpecError

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"learning_rate": 0.01},
    "adagrad": {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "epsilon": 1e-7},
    "adam": {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7},
}
# Settings of Keras's optimizers that do not apply to the rows, and the values that leave them out.
_LEFT_OUT: Mapping[str, tuple[Any, ...]] = {
    "momentum": (0, 0.0),
    "nesterov": (False,),
    "amsgrad": (False,),
    "weight_decay": (None, 0),
    "clipnorm": (None,),
    "clipvalue": (None,),
    "global_clipnorm": (None,),
    "use_ema": (False, None),
    "loss_scale_factor": (None,),
    "gradient_accumulation_steps": (None, 1),
}


@dataclass(frozen=True)
class RowOptimizer:
    """An optimizer of rows, with the settings of Keras's optimizer of this name."""

    name: str  # sgd, adagrad or adam
    settings: Mapping[str, Any]

    @property
    def slots(self) -> dict[str, float]:
        """The initial value of each slot, a variable of the shape of the table."""
        if self.name == "adagrad":
            return {"accumulator": float(self.settings["initial_accumulator_value"])}
        return {"momentum": 0.0, "velocity": 0.0} if self.name == "adam" else {}

    @property
    def config(self) -> dict[str, Any]:
        """The optimizer as the layer's configuration holds it."""
        settings = dict(self.settings)
        if not isinstance(settings["learning_rate"], float):
            settings["learning_rate"] = keras.saving.serialize_keras_object(settings["learning_rate"])
        return {"name": self.name, **settings}

    def learning_rate(self, variable: tf.Variable, steps: tf.Tensor) -> tf.Tensor:
        """Return the learning rate after a number of steps: of a schedule, or of the variable."""
        rate = self.settings["learning_rate"]
        return tf.cast(rate(steps) if callable(rate) else variable, tf.float32)

    def change(
        self, gradients: tf.Tensor, slots: Mapping[str, tf.Tensor], rate: tf.Tensor, steps: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return what to subtract from rows, and the new values of their slots.

        Gradients and slots have the shape ``(rows, dim)``. `steps` is the number of steps with this one.
        """
        if self.name == "sgd":
            return rate * gradients, {}
        if self.name == "adagrad":
            accumulator = slots["accumulator"] + tf.square(gradients)
            change = rate * gradients / tf.sqrt(accumulator + self.settings["epsilon"])
            return change, {"accumulator": accumulator}
        first, second = (tf.constant(self.settings[name], tf.float32) for name in ("beta_1", "beta_2"))
        momentum = slots["momentum"] + (gradients - slots["momentum"]) * (1 - first)
        velocity = slots["velocity"] + (tf.square(gradients) - slots["velocity"]) * (1 - second)
        power = tf.cast(steps, tf.float32)
        rate = rate * tf.sqrt(1 - tf.pow(second, power)) / (1 - tf.pow(first, power))
        return rate * momentum / (tf.sqrt(velocity) + self.settings["epsilon"]), {
            "momentum": momentum,
            "velocity": velocity,
        }


def row_optimizer(given: Any) -> RowOptimizer:
    """Return the optimizer of rows for a name, a Keras optimizer, or a layer's configuration.

    Other optimizers are a `SpecError`, and settings that do not apply to rows.
    """
    if isinstance(given, RowOptimizer):
        return given
    if isinstance(given, str):
        name, settings = given.lower(), {}
    elif isinstance(given, Mapping):
        settings = dict(given)
        name = settings.pop("name")
        if isinstance(settings.get("learning_rate"), Mapping):
            settings["learning_rate"] = keras.saving.deserialize_keras_object(settings["learning_rate"])
    else:
        name, settings = _of_keras(given)
    if name not in _DEFAULTS:
        raise SpecError(
            f"optimizer={given!r}: a ShardedEmbedding takes 'sgd', 'adagrad' or 'adam', or a keras.optimizers.SGD, "
            "Adagrad or Adam; the model's other variables may have any optimizer"
        )
    return RowOptimizer(name, {**_DEFAULTS[name], **settings})


def _of_keras(given: Any) -> tuple[str, dict[str, Any]]:
    kinds: dict[Any, str] = {keras.optimizers.SGD: "sgd", keras.optimizers.Adagrad: "adagrad"}
    name = {**kinds, keras.optimizers.Adam: "adam"}.get(type(given), "")
    if not name:
        return "", {}
    config = given.get_config()
    refused = [each for each, plain in _LEFT_OUT.items() if config.get(each, plain[0]) not in plain]
    if refused:
        raise SpecError(
            f"optimizer: {type(given).__name__}({refused[0]}={config[refused[0]]!r}) does not apply to the rows of a "
            f"ShardedEmbedding, which are updated one by one: leave {refused[0]} out"
        )
    schedule = keras.optimizers.schedules.LearningRateSchedule
    rate = next((each for each in vars(given).copy().values() if isinstance(each, schedule)), None)
    settings = {each: float(config[each]) for each in _DEFAULTS[name] if each != "learning_rate"}
    return name, {**settings, "learning_rate": rate or float(config["learning_rate"])}
