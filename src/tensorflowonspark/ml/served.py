"""A logged model where MLflow loads it: a stage applied to pandas, without this package and without Spark.

This module and those that it imports are logged with each model as plain source, under a name of their own
(`logged_code`). They import pyspark only in functions that nothing here calls.
"""

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorflowonspark.columns import flat_columns, to_batch
from tensorflowonspark.columns.layout import is_list, is_vector
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.ml.calls import Call, function_call, keras_call, saved_model_call
from tensorflowonspark.ml.features import TakenColumns, call_in_pieces, features_of
from tensorflowonspark.ml.outputs import OutputGroups, result_values
from tensorflowonspark.ml.taken_types import batch_of

if TYPE_CHECKING:
    import pandas as pd

FILE = "served.pkl"  # in the directory of a saved stage
_PACKAGE = "tensorflowonspark"


@dataclass
class Served:
    """What is to be known of a stage beside its model's file; once that is loaded, MLflow's object to predict with."""

    kind: str  # of its `ModelBundle`, as the next ones
    inputs: tuple[TensorInfo, ...]
    signature: str
    tags: tuple[str, ...]
    layers: tuple[str, ...]
    code: bytes  # a pickle of the user's own classes and functions by name, or of the function that is the model
    taken: TakenColumns
    schema: pa.Schema  # of the columns that it takes
    zone: str  # of the session
    outputs: OutputGroups
    results: pa.Schema  # of the columns that `transform` adds
    batch_rows: int | None
    call: Any = None  # the function of the model, once it is loaded

    def load(self, model: Path) -> Call:
        """Return the function of the model in a directory."""
        code = pickle.loads(self.code)
        if self.kind == "function":
            return function_call(code, [each.tensor.name for outputs, _ in self.outputs for each in outputs])
        if self.kind == "saved_model":
            return saved_model_call(str(model / "saved_model"), self.tags, self.signature, self.inputs)
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        keras = import_module(self.kind)
        with keras.saving.custom_object_scope(code):
            found = keras.models.load_model(str(model / "model.keras"))
        return keras_call(found, self.kind, self.inputs, self.layers)

    def predict(self, data: "pd.DataFrame", params: Mapping[str, Any] | None = None) -> "pd.DataFrame":  # noqa: ARG002
        """Return the result columns for each row; one with a null or a wrong shape is an error, as MLflow has them."""
        import pandas as pd
        from mlflow.exceptions import MlflowException

        try:
            flat = flat_columns(self._results(data))
        except (FeedError, SpecError) as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        return pd.DataFrame({name: _plain(flat.column(name)) for name in flat.schema.names}, index=data.index)

    def _results(self, data: "pd.DataFrame") -> pa.RecordBatch:
        if missing := [name for name in self.taken.columns if name not in data]:
            raise SpecError(f"the data has no column {', '.join(map(repr, missing))}; it has {list(data)}")
        batch = batch_of(data, self.schema, self.zone)
        if not batch.num_rows:
            return pa.RecordBatch.from_pylist([], self.results)
        features = features_of(self.taken, batch, by_name=self.kind != "function")
        values = call_in_pieces(self.call, features, batch, self.batch_rows)
        results = {name: each for group in self.outputs for name, each in result_values(*group, values).items()}
        return to_batch(results, self.results, batch.num_rows)


def _plain(column: pa.Array) -> Any:
    if is_vector(column.type):
        column = column.field("values")
    return column.to_pylist() if is_list(column.type) else column.to_pandas()


class _Unpickler(pickle.Unpickler):
    """Finds the classes of this package where it has another name."""

    def find_class(self, module: str, name: str) -> Any:
        root, dot, rest = module.partition(".")
        return super().find_class(f"{__name__.partition('.')[0] if root == _PACKAGE else root}{dot}{rest}", name)


def _load_pyfunc(path: str) -> Served:
    """Return the object whose ``predict`` MLflow calls; the model is loaded before the first request."""
    with Path(path, FILE).open("rb") as file:
        served: Served = _Unpickler(file).load()
    served.call = served.load(Path(path, "model"))
    return served
