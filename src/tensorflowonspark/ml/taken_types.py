"""The types of the columns that a logged stage takes, by which rows of pandas become rows as Spark sends them."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import DataType, StructType

from tensorflowonspark.columns import arrow_type
from tensorflowonspark.columns.layout import is_list, leaf_type
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.ml.model import KerasModel

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_ZONE = "spark.sql.session.timeZone"
_VECTOR = f"{VectorUDT.__module__}.{VectorUDT.__name__}"


@dataclass(frozen=True)
class TakenTypes:
    """The columns of features of a stage."""

    schema: StructType
    zone: str  # of the session, in which Spark gives timestamps to pandas

    @classmethod
    def of(cls, stage: KerasModel, frame: "DataFrame") -> "TakenTypes":
        """Return those of a stage that takes the rows of a DataFrame."""
        schema = frame.schema
        zone = frame.sparkSession.conf.get(_ZONE)
        return cls(type(schema)([schema[name] for name in stage._feature_columns]), str(zone))

    def to_json(self) -> str:
        """Return them as text."""
        return json.dumps([self.schema.jsonValue(), self.zone])

    @classmethod
    def from_json(cls, text: str) -> "TakenTypes":
        """Return what `to_json` has written.

        Raises SpecError if it is cut or damaged, or has a type that is not Spark's own: its description would name a
        class to import, or contain its code.
        """
        try:
            schema, zone = json.loads(text, object_hook=_own_type)
            return cls(StructType.fromJson(schema), zone)
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f"the types of the columns are cut or damaged: {type(error).__name__}: {error}") from error

    def batch_of(self, data: "pd.DataFrame") -> pa.RecordBatch:
        """Return rows of pandas as Spark sends rows with these columns.

        Raises FeedError if a value can't be of its column's type.
        """
        zone = _session_zone() or self.zone
        arrays = [_array(data[each.name], each.dataType, zone) for each in self.schema]
        return pa.RecordBatch.from_arrays(arrays, self.schema.names)


def _own_type(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("type") == "udt" and given.get("pyClass") != _VECTOR:
        raise SpecError(f"the type {given.get('pyClass')!r} of a column is none that a stage takes")
    return given


def _session_zone() -> str:
    """Return the time zone that the session of this Spark task has been given; nothing outside of tasks."""
    task = TaskContext.get()
    return str((task and task.getLocalProperty(_ZONE)) or "")


def _array(values: "pd.Series[Any]", kind: DataType, zone: str) -> pa.Array:
    """Return a column of pandas as Spark sends a column of the type."""
    wanted = arrow_type(kind)
    try:
        if isinstance(kind, VectorUDT):
            return pa.array([_vector(value) for value in values], wanted)
        found = pa.array([_plain(value, wanted, zone) for value in values])
        # Models take decimals as floats, which MLflow has made of them.
        return found if pa.types.is_decimal(leaf_type(wanted)) else found.cast(wanted)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FeedError(
            f"column {values.name!r} ({values.dtype}, first: {next(iter(values), None)!r}) can't be turned into "
            f"{kind.simpleString()}, as the model takes it: {error}"
        ) from error


def _vector(value: Any) -> Any:
    """Return a vector as Spark's struct, as which `mlflow.pyfunc.spark_udf` gives it."""
    if value is None or isinstance(value, dict):
        return value
    return {"type": 1, "values": value.toArray() if hasattr(value, "toArray") else value}


def _plain(value: Any, kind: pa.DataType, zone: str) -> Any:
    """Return a value of pandas as Arrow takes it for a type."""
    if is_list(kind):
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            return value.tolist()
        return None if value is None else [_plain(each, kind.value_type, zone) for each in value]
    return _moment(value, kind, zone) if pa.types.is_temporal(kind) and not pa.types.is_time(kind) else value


def _moment(value: Any, kind: pa.DataType, zone: str) -> Any:
    """Return a date, timestamp or interval as Python has it."""
    import pandas as pd

    if pd.isna(value):
        return None
    if isinstance(value, (int, float)):
        raise TypeError(f"{value!r} has no unit: expected a date or time")
    if pa.types.is_duration(kind):
        return pd.Timedelta(value).to_pytimedelta()
    moment = pd.Timestamp(value)
    if pa.types.is_date(kind):
        if moment != moment.normalize():
            raise ValueError(f"{moment} is more than a date")
        return moment.date()
    if kind.tz and moment.tzinfo is None:
        # Spark gives local times to pandas. Of an hour that a change of clocks repeats, this is the second.
        moment = moment.tz_localize(zone, ambiguous=False, nonexistent="shift_forward")
    return moment.to_pydatetime(warn=False)
