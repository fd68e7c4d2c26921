"""A flavor of MLflow: fitted stages as models that MLflow's ``pyfunc`` applies to pandas, and Spark to DataFrames.

A logged model is a saved `KerasModel` in ``data/stage``, and this module as MLflow's loader. Predicting needs
TensorFlow and pyspark, but no Spark session.
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import code_for
from tensorflowonspark.ml.distribution import load_call
from tensorflowonspark.ml.inputs import column_shapes
from tensorflowonspark.ml.model import KerasModel
from tensorflowonspark.ml.outputs import Columns, result_types, result_values
from tensorflowonspark.ml.persistence import StageReader, StageWriter
from tensorflowonspark.ml.predict import TakenColumns, call_in_pieces, features_of
from tensorflowonspark.ml.transform import output_groups

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.types import DataType, StructType

__all__ = ["load_model", "log_stage", "requirements", "signature_of"]

_STAGE = "stage"
_PACKAGES = ("tensorflowonspark", "tensorflow", "keras", "tf_keras", "pyspark", "pandas", "pyarrow", "numpy")
# The names of Spark's types and of MLflow's.
_TYPES = {
    "boolean": "boolean",
    "tinyint": "integer",
    "smallint": "integer",
    "int": "integer",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "datetime",
    "timestamp": "datetime",
    "timestamp_ntz": "datetime",
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
        return _read(f"{directory}/data/{_STAGE}")


def log_stage(stage: KerasModel, run_id: str, name: str, signature: Any) -> str:
    """Log a stage as a model of a run; return its address.

    Parameters
    ----------
    stage : KerasModel
        The stage.
    run_id : str
        The run.
    name : str
        The model's name in the run.
    signature : mlflow.models.ModelSignature or None
        The columns that it takes and returns.
    """
    from mlflow import pyfunc
    from mlflow.models import Model

    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        writer = stage.write()
        assert isinstance(writer, StageWriter)
        writer.save_locally(f"{scratch}/{_STAGE}")
        logged = Model.log(
            artifact_path=None,
            name=name,
            flavor=pyfunc,
            run_id=run_id,
            loader_module=__name__,
            data_path=f"{scratch}/{_STAGE}",
            pip_requirements=requirements(),
            signature=signature,
        )
    return str(logged.model_uri)


def requirements() -> list[str]:
    """Return what a process needs to load a logged stage, with the versions of this one."""
    found = []
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{package}=={metadata.version(package)}")
    return found


def signature_of(stage: KerasModel, schema: "StructType", columns: Sequence[str]) -> Any:
    """Return MLflow's signature of a stage; None if a column has no type of MLflow's.

    Parameters
    ----------
    stage : KerasModel
        The stage.
    schema : StructType
        The schema of a DataFrame that it takes.
    columns : sequence of str
        The columns of features.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from pyspark.sql.types import StructType

    results: dict[str, DataType] = {}
    for outputs, names in _groups(stage):
        results.update(result_types(outputs, names))
    taken = {name: _type(schema[name].dataType) for name in columns}
    returned: dict[str, Any] = {}
    for name, kind in results.items():
        if isinstance(kind, StructType):
            returned |= {f"{name}.{each.name}": _type(each.dataType) for each in kind}
        else:
            returned[name] = _type(kind)
    if None in taken.values() or None in returned.values():
        return None
    return ModelSignature(
        inputs=Schema([ColSpec(kind, name) for name, kind in taken.items()]),
        outputs=Schema([ColSpec(kind, name) for name, kind in returned.items()]),
    )


def _type(kind: "DataType") -> Any:
    """Return MLflow's type for a type of Spark's; None if there is none."""
    from mlflow.types import DataType
    from mlflow.types.schema import Array

    if kind.typeName() in ("vectorudt", "udt") or type(kind).__name__ == "VectorUDT":
        return Array(DataType.double)
    if kind.typeName() == "array":
        element = _type(kind.elementType)
        return None if element is None else Array(element)
    name = _TYPES.get(kind.simpleString(), "")
    return DataType[name] if name else None


def _groups(stage: KerasModel) -> Any:
    columns = Columns(stage.getPredictionCol(), stage.getProbabilityCol(), stage.getRawPredictionCol())
    return output_groups(stage._bundle, columns, stage._layers)


def _read(directory: str) -> KerasModel:
    reader = KerasModel.read()
    assert isinstance(reader, StageReader)
    stage = reader.load_locally(directory)
    assert isinstance(stage, KerasModel)
    return stage


# ---- for MLflow's pyfunc


def _load_pyfunc(path: str) -> "_Predictor":
    """Return the object whose ``predict`` MLflow calls."""
    return _Predictor(_read(path if Path(path).name == _STAGE else f"{path}/{_STAGE}"))


class _Predictor:
    """A stage applied to pandas."""

    def __init__(self, stage: KerasModel) -> None:
        self._stage = stage
        self._call = load_call(stage._bundle, stage._layers, code_for(stage.getCustomObjects()))

    def predict(self, data: "pd.DataFrame", params: Mapping[str, Any] | None = None) -> "pd.DataFrame":  # noqa: ARG002
        """Return the result columns for each row; one with a null or a wrong shape is an error.

        Raises
        ------
        SpecError
            If a column is missing.
        """
        import pandas as pd

        columns = self._stage._feature_columns
        missing = [name for name in columns if name not in data]
        if missing:
            raise SpecError(f"the data has no column {', '.join(map(repr, missing))}; it has {list(data)}")
        arrays = [pa.array([_plain(value) for value in data[name]]) for name in columns]
        batch = pa.RecordBatch.from_arrays(arrays, columns)
        bundle, by_column = self._stage._bundle, self._stage._by_column
        nested = [name for name in columns if pa.types.is_list(batch.schema.field(name).type)]
        shapes = column_shapes(bundle.inputs, columns, nested, by_column["shapes"])
        features = features_of(TakenColumns(tuple(columns), {**by_column, "shapes": shapes}), batch)
        values = call_in_pieces(self._call, features, batch, self._stage.getInferenceBatchSize())
        found: dict[str, Any] = {}
        for outputs, names in _groups(self._stage):
            for name, result in result_values(outputs, names, values).items():
                several = isinstance(result, dict)
                found |= {f"{name}.{output}": each for output, each in result.items()} if several else {name: result}
        return pd.DataFrame({name: _column(result) for name, result in found.items()}, index=data.index)


def _plain(value: Any) -> Any:
    """Return a value of pandas as Arrow takes it: a vector of Spark's, or an array, as a list."""
    value = value.toArray() if hasattr(value, "toArray") else value
    return value.tolist() if isinstance(value, np.ndarray) else value


def _column(values: Any) -> Any:
    array = np.asarray(values)
    if array.ndim > 1 and array.shape[1:] == (1,):
        array = array[:, 0]
    return array if array.ndim == 1 else array.tolist()
