"""Checks of what a model is compiled with: names that Keras has, an optimizer, and a loss."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tensorflowonspark.errors import SpecError, did_you_mean
from tensorflowonspark.keras.sublayers import all_sublayers
from tensorflowonspark.ml.serialization import library_of, nested

_METRICS = {"accuracy", "acc", "crossentropy", "ce"}  # that Keras chooses by the loss
_MODULES = {"optimizer": "optimizers", "loss": "losses", "metrics": "metrics"}
# Names that every Keras has, for which a driver without it need not import it.
_COMMON = {
    *("adam", "adamw", "sgd", "rmsprop", "adagrad", "mse", "mae", "mean_squared_error", "mean_absolute_error"),
    *("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy", "AUC"),
}


def check_compilation(
    model: Any, settings: Mapping[str, Any], custom_objects: Mapping[str, Any], *, has_loop: bool
) -> None:
    """Refuse a model without an optimizer or a loss, and names of these that Keras does not have.

    The settings are what ``compile`` would be called with; if there are none, the model must be compiled, unless the
    user trains with a loop. Names may mean the user's own objects. Raises SpecError, with the name that was probably
    meant.

    Examples
    --------
    >>> import keras
    >>> check_compilation(keras.Sequential(), {"loss": "mean_squared_eror"}, {}, has_loop=False)
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: loss='mean_squared_eror': Keras has none of this name (did you mean \
'mean_squared_error'?); customObjects={'mean_squared_eror': ...} gives one of your own
    """
    if not (settings or has_loop or getattr(model, "optimizer", None) is not None):
        raise SpecError("the model is not compiled: compile it, or set optimizer and loss on the estimator")
    given = {"loss": getattr(model, "loss", None), **settings}  # Keras looks it up in the first step
    check_names(given, custom_objects, library_of(model))
    if not has_loop and given["loss"] is None and _needs_loss(model):
        beside = " beside its metrics" if settings.get("metrics") else ""
        raise SpecError(
            f"the model has no loss{beside}: set it on the estimator, as in loss='mse', or compile the model with one"
        )


def check_names(given: Mapping[str, Any], custom_objects: Mapping[str, Any], library: str, built: bool = True) -> None:
    """Refuse names of optimizers, losses and metrics that Keras (``keras`` or ``tf_keras``) does not have.

    Names may mean the user's own objects. If the model is not built, this process may have no Keras, and then refuses
    nothing. Raises SpecError, with the name that was probably meant.
    """
    for setting, place in _MODULES.items():
        special = _METRICS if setting == "metrics" else set[str]()
        for name in nested(given.get(setting)):  # which may have one for each output
            if not isinstance(name, str) or name in custom_objects or name in special:
                continue
            if not built and name in _COMMON and library not in sys.modules:
                continue
            try:
                module = getattr(import_module(library), place)
            except ImportError:
                if built:
                    raise
                return
            try:
                module.get(name)
            except ValueError:
                meant = did_you_mean(name, {*special, *dir(module), *map(str.lower, dir(module))} - {name})
                raise SpecError(
                    f"{setting}={name!r}: Keras has none of this name{meant}; customObjects={{{name!r}: ...}} gives "
                    "one of your own"
                ) from None
            except TypeError as error:
                raise SpecError(
                    f"{setting}={name!r} needs arguments ({error}): give an object in place of the name"
                ) from None


def _needs_loss(model: Any) -> bool:
    """Return whether nothing but a loss of ``compile`` can be one: all of the model is Keras's, without penalties."""
    library = library_of(model)
    adding = import_module(library).layers.ActivityRegularization
    layers = list(all_sublayers(model))
    own = all(type(each).__module__.partition(".")[0] == library for each in layers)
    adds = any(getattr(each, "activity_regularizer", None) is not None or isinstance(each, adding) for each in layers)
    return own and not adds and not model.losses
