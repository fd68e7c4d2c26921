"""The types of the columns that a logged stage takes, by which rows of pandas become rows as Spark sends them."""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns.layout import is_list, is_vector, leaf_type
from tensorflowonspark.errors import FeedError

if TYPE_CHECKING:
    import pandas as pd

ZONE = "spark.sql.session.timeZone"


def batch_of(data: "pd.DataFrame", schema: pa.Schema, zone: str) -> pa.RecordBatch:
    """Return rows of pandas as Spark sends rows with these columns, which are in Arrow.

    The zone is that of the session which has logged the model, in which Spark gives timestamps to pandas. Raises
    FeedError if a value can't be of its column's type.
    """
    zone = _session_zone() or zone
    return pa.RecordBatch.from_arrays([_array(data[each.name], each.type, zone) for each in schema], schema.names)


def _session_zone() -> str:
    """Return the time zone that the session of this Spark task has been given; nothing outside of tasks."""
    pyspark = sys.modules.get("pyspark")
    task = pyspark and pyspark.TaskContext.get()
    return str((task and task.getLocalProperty(ZONE)) or "")


def _array(values: "pd.Series[Any]", wanted: pa.DataType, zone: str) -> pa.Array:
    """Return a column of pandas as Spark sends a column of the type."""
    try:
        if is_vector(wanted):
            return pa.array([_vector(value) for value in values], wanted)
        found = pa.array([_plain(value, wanted, zone) for value in values])
        # Models take decimals as floats, which MLflow has made of them.
        return found if pa.types.is_decimal(leaf_type(wanted)) else found.cast(wanted)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FeedError(
            f"column {values.name!r} ({values.dtype}, first: {next(iter(values), None)!r}) can't be turned into "
            f"{wanted}, as the model takes it: {error}"
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
