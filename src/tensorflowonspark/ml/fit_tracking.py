"""Tracking of `KerasEstimator.fit`: its params, and the fitted model with its signature, in the active MLflow run."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.run_log import open_log
from tensorflowonspark.driver.tracking import Fit, fit_parameters, scalars
from tensorflowonspark.ml.mlflow import Logged
from tensorflowonspark.ml.model import KerasModel
from tensorflowonspark.ml.params import ModelParams, is_plain
from tensorflowonspark.ml.registration import Registration
from tensorflowonspark.secrecy import is_secret
from tensorflowonspark.settings import Dashboard, as_group

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)
# A model that takes longer to log is left out, so that a tracking server which hangs does not hold up `fit`.
_MODEL_SECONDS = 30.0  # to log a model, and
_BYTES_PER_SECOND = 2e6  # of its data
_AUTOLOG = "mlflow.pyspark.ml"
_MODEL = f"{KerasModel.__module__}.{KerasModel.__name__}"
_OBJECTS = ("callbacks", "clusterOptions", "customObjects", "initialModel", "model", "trainFn", "validationData")
_NOT_LOGGED = (*_OBJECTS, "env")  # which may hold secrets


def parameters_of(stage: ModelParams) -> dict[str, Any]:
    """Return what is logged of an estimator's params: numbers, texts, lists and mappings of them; names of objects.

    Optimizers and losses that are objects are logged by the names of their classes, with the numbers and texts of
    their configurations. Functions, callbacks and DataFrames are left out.
    """
    found: dict[str, Any] = {}
    for param in stage.params:
        if not stage.isDefined(param) or param.name in _NOT_LOGGED or is_secret(param.name):
            continue
        value = stage.getOrDefault(param)
        if param.name == "modelParams":
            found |= {f"{param.name}.{name}": each for name, each in scalars(value).items()}
        elif is_plain(value):
            if value not in ({}, [], None):
                found[param.name] = value
        elif isinstance(value, (list, tuple)):
            found[param.name] = [each if is_plain(each) else type(each).__name__ for each in value]
        elif not isinstance(value, Mapping) and hasattr(value, "get_config"):
            found[param.name] = type(value).__name__
            with suppress(Exception):  # a class of the user's
                options = {name: _number(each) for name, each in value.get_config().items() if name != "name"}
                found |= {f"{param.name}.{name}": each for name, each in scalars(options).items()}
    return found


def _number(value: Any) -> Any:
    """Return a NumPy scalar as a number of Python, rounded as it is shown there; another value as it is."""
    return float(str(value)) if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


@contextmanager
def tracked_fit(stage: ModelParams, options: Mapping[str, Any]) -> Iterator[Fit | None]:
    """Have the cluster that is started in the block log the params of an estimator; None if it logs nothing."""
    if as_group(Dashboard, options.get("dashboard"), "dashboard").tracking != "auto":
        yield None
        return
    with fit_parameters(parameters_of(stage)) as fit:
        yield fit


def log_fitted(fit: Fit | None, model: KerasModel, frame: "DataFrame", registration: Registration) -> None:
    """Log the fitted model to the run that its cluster has logged to, and register it.

    Over Spark Connect the cluster's driver is a task, which logs nothing: then the params, and the metrics of each
    epoch from the model's history, are logged here.
    """
    log = (fit.log or open_log()) if fit else None
    if fit is None or log is None:
        if registration.name:
            _log.warning(
                "the model is not registered as %r: no run of MLflow is active here, or tracking is off",
                registration.name,
            )
        return
    if fit.log is None:
        log.log_parameters(fit.parameters)
    if not fit.epochs and model.history:
        log.log_history(model.history)
    if not log.close() or (_autolog_takes_models() and not registration.name):
        return
    name, run_id = f"{log.prefix}model".replace("/", "_"), log.run_id
    try:
        logged = Logged(model, frame)
    except Exception as error:  # of the user's own code: the training goes on
        log.warn(f"the model: {error}", once=False)
        return
    found: list[str] = []
    seconds = _MODEL_SECONDS + logged.size / _BYTES_PER_SECOND

    def send() -> None:
        found.append(logged.log(name, run_id, registration.tags).model_uri)

    if log.call("the model", seconds, send) and registration.name:
        registry = str(sys.modules["mlflow"].get_registry_uri())
        what = f"the model's registration as {registration.name!r} at {registry}"
        log.call(what, seconds, lambda: registration.register(found[0]), registry)


def _autolog_takes_models() -> bool:
    """Return whether ``mlflow.pyspark.ml.autolog`` is on in this process, and logs models of this package."""
    module = sys.modules.get(_AUTOLOG)
    if module is None:
        return False
    with suppress(Exception):  # another version of MLflow
        from mlflow.utils.autologging_utils import autologging_is_disabled, get_autologging_config

        if autologging_is_disabled("pyspark.ml") or not get_autologging_config("pyspark.ml", "log_models", True):
            return False
        names = module._log_model_allowlist or ()
        return any(name == _MODEL or (name.endswith("*") and _MODEL.startswith(name[:-1])) for name in names)
    return False
