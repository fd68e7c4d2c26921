"""A flavor of MLflow: fitted stages as models that MLflow's ``pyfunc`` applies to pandas, and Spark to DataFrames.

A logged model is a saved `KerasModel` in ``data/stage``, and this module as MLflow's loader. Predicting needs
TensorFlow and pyspark, but no Spark session.
"""

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import DataType, StructType

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.distribution import loaded_here
from tensorflowonspark.ml.model import KerasModel
from tensorflowonspark.ml.taken_types import TakenTypes

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load_model"]

_STAGE = "stage"
_TAKEN = "taken.json"  # beside it: the types of its columns, and a time zone
_PACKAGES = ("tensorflowonspark", "tensorflow", "keras", "tf_keras", "pyspark", "pandas", "pyarrow", "numpy")
# The names of Spark's types and of MLflow's.
_TYPES = {
    **{name: name for name in ("boolean", "integer", "long", "float", "double", "string", "binary")},
    **dict.fromkeys(("byte", "short"), "integer"),
    **dict.fromkeys(("char", "varchar"), "string"),
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), "datetime"),
    "decimal": "double",
}


def load_model(model_uri: str) -> KerasModel:
    """Return the stage of a model that a training of `KerasEstimator` has logged to MLflow.

    Parameters
    ----------
    model_uri : str
        MLflow's address of the model, as in ``runs:/<run id>/model`` or ``models:/digits/1``. Loading it runs code of
        those who can write there.

    Returns
    -------
    KerasModel

    Raises
    ------
    SpecError
        If the model was logged otherwise.

    Examples
    --------
    >>> stage = load_model(f"runs:/{run_id}/model")  # doctest: +SKIP
    >>> stage.transform(test).select("prediction")  # doctest: +SKIP
    """
    import mlflow

    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        directory = mlflow.artifacts.download_artifacts(model_uri, dst_path=scratch)
        return KerasModel.read().load_locally(f"{directory}/data/{_STAGE}", model_uri)


def log_stage(stage: KerasModel, run_id: str, name: str, columns: TakenTypes) -> str:
    """Log a stage, and the columns that it takes, as a model of a run, by its name there; return its address."""
    from mlflow import pyfunc
    from mlflow.models import Model

    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        stage.write().save_locally(f"{scratch}/{_STAGE}")
        Path(scratch, _STAGE, _TAKEN).write_text(columns.to_json())
        logged = Model.log(
            artifact_path=None,
            name=name,
            flavor=pyfunc,
            run_id=run_id,
            loader_module=__name__,
            data_path=f"{scratch}/{_STAGE}",
            pip_requirements=requirements(),
            signature=_signature_of(stage, columns.schema),
        )
    return str(logged.model_uri)


def requirements() -> list[str]:
    """Return what a process needs to load a logged stage, with the versions of this one."""
    found = []
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{package}=={metadata.version(package)}")
    return found


def _signature_of(stage: KerasModel, schema: StructType) -> Any:
    """Return MLflow's signature of a stage that takes the columns of a schema."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from pyspark.sql.types import StructType

    returned: dict[str, Any] = {}
    for name, kind in stage._result_types.items():
        if isinstance(kind, StructType):
            returned |= {f"{name}.{each.name}": _type(each.dataType) for each in kind}
        else:
            returned[name] = _type(kind)
    return ModelSignature(
        inputs=Schema([ColSpec(_type(each.dataType, taken=True), each.name) for each in schema]),
        outputs=Schema([ColSpec(kind, name) for name, kind in returned.items()]),
    )


def _type(kind: DataType, taken: bool = False) -> Any:
    """Return MLflow's type for a type of Spark's; for one that it does not have, or not in such columns, any."""
    from mlflow.types import DataType
    from mlflow.types.schema import AnyType, Array

    if kind.typeName() == "array":
        element = _type(kind.elementType, taken)
        # MLflow makes numbers of times in lists.
        return AnyType() if element in (AnyType(), DataType.datetime) else Array(element)
    if isinstance(kind, VectorUDT):  # of which MLflow refuses Spark's own, where it wants arrays
        return AnyType() if taken else Array(DataType.double)
    name = _TYPES.get(kind.typeName(), "")
    return DataType[name] if name else AnyType()


# ---- for MLflow's pyfunc


def _load_pyfunc(path: str) -> "_Predictor":
    """Return the object whose ``predict`` MLflow calls."""
    directory = Path(path) if Path(path).name == _STAGE else Path(path, _STAGE)
    stage = KerasModel.read().load_locally(str(directory))
    try:
        taken = TakenTypes.from_json((directory / _TAKEN).read_text())
    except (OSError, SpecError) as error:
        raise SpecError(f"{directory}: {_TAKEN} can't be read: {error}") from error
    return _Predictor(stage, taken)


class _Predictor:
    """A stage applied to pandas."""

    def __init__(self, stage: KerasModel, taken: TakenTypes) -> None:
        self._stage, self._taken = stage, taken
        loaded_here(stage._complete_bundle, stage._layers)  # before the first request

    def predict(self, data: "pd.DataFrame", params: Mapping[str, Any] | None = None) -> "pd.DataFrame":  # noqa: ARG002
        """Return the result columns for each row; one with a null or a wrong shape is an error."""
        import pandas as pd

        stage = self._stage
        columns = stage._feature_columns
        missing = [name for name in columns if name not in data]
        if missing:
            raise SpecError(f"the data has no column {', '.join(map(repr, missing))}; it has {list(data)}")
        batch = self._taken.batch_of(data)
        found: dict[str, Any] = {}
        for name, result in stage._results(batch, self._taken.schema, stage._layers, stage._output_groups).items():
            several = isinstance(result, dict)
            found |= {f"{name}.{output}": each for output, each in result.items()} if several else {name: result}
        return pd.DataFrame({name: _column(result) for name, result in found.items()}, index=data.index)


def _column(values: Any) -> Any:
    array = np.asarray(values)
    if array.ndim > 1 and array.shape[1:] == (1,):
        array = array[:, 0]
    return array if array.ndim == 1 else array.tolist()
