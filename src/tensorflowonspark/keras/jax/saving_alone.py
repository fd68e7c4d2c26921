"""Saving and export of models by the chief alone, on JAX.

Keras makes variables while it saves, on the devices of all workers as long as a distribution is set. Here a model is
saved as one of this process alone. If a model's variables are divided among the workers, all of them must take part:
`saved_by_one` collects each while it is written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.inference import takes_training
from tensorflowonspark.keras.jax.jax_processes import current
from tensorflowonspark.keras.jax.value_placement import (
    gathered_when_read,
    is_read_whole,
    is_sharded,
    on_this_process,
    whole_values,
)


def save_alone(keras: Any) -> None:
    """Have Keras save models as those of one process (called after its import)."""
    for name in ("save", "save_weights", "export"):
        wrap(keras, f"Model.{name}", lambda wrapped, model, /, *args, **kwargs: _alone(wrapped, model, args, kwargs))
    for module in ("saving", "models"):  # the same function
        wrap(
            keras,
            f"{module}.save_model",
            lambda wrapped, _, /, model, *args, **kwargs: _alone(wrapped, model, (model, *args), kwargs),
        )


def _alone(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if current() is None or is_read_whole():
        return wrapped(*args, **kwargs)
    variables = _variables(model)
    if not any(_is_of_all(each) for each in variables):
        return wrapped(*args, **kwargs)
    divided = next((each.path for each in variables if is_sharded(each.value)), None)
    if divided is not None:
        raise SpecError(
            f"the variable {divided!r} is divided among the workers, and one alone can't save it: call "
            "ctx.export(model, path) on all workers"
        )
    with on_this_process(variables):
        return wrapped(*args, **kwargs)


def _is_of_all(variable: Any) -> bool:
    return not getattr(variable.value, "is_fully_addressable", True)


def _variables(model: Any) -> list[Any]:
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # within an epoch Keras holds the values elsewhere
    optimizer = getattr(model, "optimizer", None)
    found = [*getattr(model, "variables", []), *(optimizer.variables if optimizer is not None else [])]
    return list({id(each): each for each in found}.values())


@contextmanager
def saved_by_one(model: Any, call: str, *, saves: bool) -> Iterator[None]:
    """Have a model be of this process alone where it `saves`, for the duration of a block, which all workers enter.

    Variables that are divided among them are collected one after another, when they are read.
    """
    if current() is None:
        yield
        return
    variables = _variables(model)
    with on_this_process(variables), gathered_when_read(variables, call, reads=saves):
        yield


def inference_function(model: Any) -> Callable[[Any], Any]:
    """Return a function of features with which this worker alone predicts, with the weights of this moment.

    If the model's variables are divided among the workers, all of them must call it.
    """
    import jax

    options = {"training": False} if takes_training(model) else {}
    variables = _variables(model)
    with on_this_process(variables, whole_values(variables)) if current() is not None else nullcontext():
        state = [
            [jax.numpy.array(each.value, copy=True) for each in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        ]

    @jax.jit
    def call(state: Any, features: Any) -> Any:
        return model.stateless_call(*state, features, **options)[0]

    return lambda features: jax.tree.map(np.asarray, call(state, features))
