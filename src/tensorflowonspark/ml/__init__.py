"""Keras models as stages of Spark ML: fit on a DataFrame, transform a DataFrame.

`estimator` and `model` are the two stages, `params` what can be set on them. `recipe` is how a model gets from the
driver to the nodes, with the user's own classes in it (`code`, `custom`), `training` what the nodes do with it,
`artefact` what comes back and is saved. `predict` runs in Spark's Python workers, and `inputs` and `outputs` stand
between columns and a model's tensors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorflowonspark.ml.estimator import KerasEstimator as KerasEstimator
    from tensorflowonspark.ml.model import KerasModel as KerasModel
    from tensorflowonspark.ml.summary import TrainingSummary as TrainingSummary

__all__ = ["KerasEstimator", "KerasModel", "TrainingSummary"]

_HOMES = {"KerasEstimator": "estimator", "KerasModel": "model", "TrainingSummary": "summary"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
