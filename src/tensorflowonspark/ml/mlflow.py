"""A flavor of MLflow: fitted stages as models that MLflow's ``pyfunc`` applies to pandas, and Spark to DataFrames.

A logged model is a saved `KerasModel` in ``data/stage``, with what `served` needs to apply its file, and the code that
this takes in ``code``: MLflow needs neither this package nor Spark to serve it.
"""

import pickle
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import DataType, StructType

from tensorflowonspark.columns import Kind, arrow_type, natural_type, zeros
from tensorflowonspark.columns.layout import is_binary, leaf_type
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.logged_code import own_code, users_code
from tensorflowonspark.ml.model import KerasModel
from tensorflowonspark.ml.outputs import struct_of
from tensorflowonspark.ml.registration import Registration
from tensorflowonspark.ml.served import FILE, Served
from tensorflowonspark.ml.taken_types import ZONE

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = ["load_model", "log_model"]

_STAGE = "stage"
_MODULES = ("numpy", "pandas", "tensorflow")  # that `served` imports, beside pyarrow and Keras
# The names of Spark's types and of MLflow's.
_TYPES = {
    **{name: name for name in ("boolean", "integer", "long", "float", "double", "string", "binary")},
    **dict.fromkeys(("byte", "short"), "integer"),
    **dict.fromkeys(("char", "varchar"), "string"),
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), "datetime"),
    "decimal": "double",
}
_MAX_EXAMPLE = 10_000  # values of an example's column


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


def log_model(
    stage: KerasModel,
    frame: "DataFrame",
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    tags: Mapping[str, Any] | None = None,
    aliases: Sequence[str] = (),
    input_example: Any = None,
) -> Any:
    """Log a stage to MLflow as a model that is served without this package and Spark, and register it.

    `KerasEstimator.fit` does this with what it has trained; this is for other stages, and for stages that are read.

    Parameters
    ----------
    stage : KerasModel
        The stage. Its classes and functions that are yours are logged with it.
    frame : DataFrame
        Rows as it takes them: the types of its columns become the model's signature. Nothing is computed of it.
    name : str
        The name of the model in the active run, or a new one.
    registered_model_name : str, optional
        Register it as a new version of the model of this name; in Unity Catalog ``catalog.schema.model``.
    tags : mapping, optional
        Tags of the logged model, and of the registered version.
    aliases : sequence of str
        Aliases that become those of the registered version.
    input_example : optional
        As MLflow takes it, in place of one with zeros and empty strings, of the columns' types.

    Returns
    -------
    mlflow.models.model.ModelInfo
        MLflow's description of the model, with its ``model_uri`` and ``registered_model_version``.

    Raises
    ------
    SpecError
        If a name or an alias can't be right, the rows are not as the stage takes them, or the code of the model can't
        be logged. Errors of MLflow and its servers are its own.

    Examples
    --------
    >>> info = log_model(stage, df, registered_model_name="digits", aliases=["champion"])  # doctest: +SKIP
    >>> mlflow.pyfunc.load_model("models:/digits@champion").predict(df.toPandas())  # doctest: +SKIP
    """
    registration = Registration.of(registered_model_name, tags, aliases)
    info = Logged(stage, frame, input_example).log(name, None, registration.tags)
    if registration.name:
        info.registered_model_version = registration.register(info.model_uri)
    return info


class Logged:
    """A stage with what is logged of it; all that needs the session and the columns is done when it is made.

    Raises SpecError if the rows are not as the stage takes them, or the code of the model can't be logged.
    """

    def __init__(self, stage: KerasModel, frame: "DataFrame", input_example: Any = None) -> None:
        schema, bundle, results = stage._taken_schema(frame), stage._complete_bundle, stage._result_types
        users = pickle.loads(bundle.data) if bundle.kind == "function" else bundle.code.load()
        code, self._files, self._imported = users_code(users)
        self.stage, self.size, self._names = stage, len(bundle.data), bundle.code.names
        self._served = Served(
            kind=bundle.kind,
            inputs=bundle.inputs,
            signature=bundle.signature,
            tags=bundle.tags,
            layers=stage._layers,
            code=code,
            taken=stage._taken_columns(schema),
            schema=_arrow(schema),
            zone=str(frame.sparkSession.conf.get(ZONE)),
            outputs=stage._output_groups,
            results=_arrow(struct_of(results)),
            batch_rows=stage.getInferenceBatchSize(),
        )
        self._signature = _signature_of(schema, results)
        self._example = _example(self._served) if input_example is None else input_example

    def log(self, name: str, run_id: str | None, tags: Mapping[str, Any]) -> Any:
        """Log it as a model, by its name in a run; return MLflow's description."""
        from mlflow.models import Model

        return Model.log(None, self, name=name, run_id=run_id, tags=dict(tags), validate_serving_input=False)

    def save_model(self, path: str, mlflow_model: Any, validate_serving_input: bool = False) -> None:  # noqa: ARG002
        """Write the files of the model, as MLflow asks a flavor to."""
        from mlflow import pyfunc

        module, files = own_code()
        with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
            self.stage.write().save_locally(f"{scratch}/{_STAGE}")
            self._require_readable(Path(scratch, _STAGE, "model"))
            Path(scratch, _STAGE, FILE).write_bytes(pickle.dumps(self._served))
            for file, text in {**files, **self._files}.items():
                Path(scratch, "code", file).parent.mkdir(parents=True, exist_ok=True)
                Path(scratch, "code", file).write_text(text)
            pyfunc.save_model(
                path,
                mlflow_model=mlflow_model,
                loader_module=module,
                data_path=f"{scratch}/{_STAGE}",
                code_paths=[str(each) for each in sorted(Path(scratch, "code").iterdir())],
                pip_requirements=_requirements({*_MODULES, self._served.kind, *self._imported}),
                signature=self._signature,
                input_example=self._example,
            )

    def _require_readable(self, model: Path) -> None:
        """Refuse a model with classes of the user's that Keras has saved and can't load."""
        try:
            if self._names:
                self._served.load(model)
        except ImportError:  # Keras is not here
            pass
        except Exception as error:
            reason = (str(error).strip() or repr(error)).splitlines()[-1]
            raise SpecError(
                f"the model can't be loaded from its file, with your {', '.join(self._names)}: {reason} A class needs "
                "a get_config with what its constructor takes"
            ) from error


def _arrow(schema: StructType) -> pa.Schema:
    return pa.schema([(each.name, arrow_type(each.dataType)) for each in schema])


def _requirements(modules: Iterable[str]) -> list[str]:
    """Return the distributions that have modules, with the versions of this process."""
    known = metadata.packages_distributions()
    found = {each for name in modules for each in ([name] if name in known.get(name, ()) else known.get(name, ()))}
    # MLflow's server needs an older pyarrow at times than its client has, and all of them read the same types.
    return ["pyarrow", *sorted(f"{each}=={metadata.version(each)}" for each in found - {"pyarrow"})]


def _example(served: Served) -> "pd.DataFrame | None":
    """Return a row of zeros and empty strings; None if a column's type has no such value, or a row is large."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, kind in zip(served.schema.names, served.schema.types, strict=True):
        (dtype, depth, text), leaf = natural_type(name, kind), leaf_type(kind)
        shape = [size or 1 for size in served.taken.by_column["shapes"].get(name, (1,) * depth)]
        sizes = shape if len(shape) == depth else [*[1] * (depth - 1), prod(shape)]  # flat arrays have other shapes
        timed, day = pa.types.is_temporal(leaf), pa.types.is_date(kind) or pa.types.is_timestamp(kind)
        if prod(sizes) > _MAX_EXAMPLE or (timed and not day) or (shape and is_binary(leaf)):
            return None
        zero: Any = zeros(1, Kind(dtype, tuple(sizes), text=text))
        columns[name] = [pd.Timestamp(0) if day else zero[0]]
    return pd.DataFrame(columns)


def _signature_of(schema: StructType, results: Mapping[str, DataType]) -> Any:
    """Return MLflow's signature of a stage that takes the columns of a schema, and adds results of these types."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    returned: dict[str, Any] = {}
    for name, kind in results.items():
        several = kind if isinstance(kind, StructType) else ()
        returned |= {f"{name}.{each.name}": each.dataType for each in several} or {name: kind}
    return ModelSignature(
        inputs=Schema([ColSpec(_type(each.dataType, taken=True), each.name) for each in schema]),
        outputs=Schema([ColSpec(_type(kind), name) for name, kind in returned.items()]),
    )


def _type(kind: DataType, taken: bool = False, inside: bool = False) -> Any:
    """Return MLflow's type for a type of Spark's; for one that it does not have, or not in such columns, any."""
    from mlflow.types import DataType
    from mlflow.types.schema import AnyType, Array

    if kind.typeName() == "array":
        element = _type(kind.elementType, taken, taken)
        # MLflow makes numbers of times in lists.
        return AnyType() if element in (AnyType(), DataType.datetime) else Array(element)
    if isinstance(kind, VectorUDT):  # of which MLflow refuses Spark's own, where it wants arrays
        return AnyType() if taken else Array(DataType.double)
    name = _TYPES.get(kind.typeName(), "")
    if inside:  # MLflow makes the narrow types of numbers in JSON, but not inside of arrays
        name = {"integer": "long", "float": "double"}.get(name, name)
    return DataType[name] if name else AnyType()
