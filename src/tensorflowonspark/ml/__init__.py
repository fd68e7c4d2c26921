"""Keras models as stages of Spark ML: fit on a DataFrame, transform a DataFrame.

- Driver: the stages `estimator` and `model`, which plans predictions, their `params` and `training_params`, and
  `persistence`; `spark_adapt`, of `preprocessing_layers` over a DataFrame.
- Driver and nodes: `compilation` and `checks`, of what a model is compiled with and of the columns that it takes.
- Nodes: `node_training`, on rows that are fed or in `row_files`, of which `nans` counts those with a NaN. A model
  travels as a `model_bundle`, with the `code` of the user's own classes; `serialization` makes it of a model in memory,
  `fetching` of a file.
- Spark's Python workers: `predict`, `invalid_rows` and `row_statistics`, with models from `distribution`.
- `onnx_engine` converts a model for them, and `row_progress` counts their rows.
- `inputs` and `outputs` map columns to a model's tensors and back; `structure` names these.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorflowonspark.ml.estimator import KerasEstimator as KerasEstimator
    from tensorflowonspark.ml.model import KerasModel as KerasModel
    from tensorflowonspark.ml.row_progress import RowProgress as RowProgress
    from tensorflowonspark.ml.summary import TrainingSummary as TrainingSummary

__all__ = ["KerasEstimator", "KerasModel", "RowProgress", "TrainingSummary"]

_MODULES = {
    "KerasEstimator": "estimator",
    "KerasModel": "model",
    "RowProgress": "row_progress",
    "TrainingSummary": "summary",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
