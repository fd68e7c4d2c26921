"""Rows of pandas become rows of the types that a logged stage takes."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import types as t

from tensorflowonspark.columns import arrow_type
from tensorflowonspark.errors import FeedError
from tensorflowonspark.ml.taken_types import batch_of

NOON = pd.Timestamp("2024-02-03 12:00")


def taken(kind, *values):
    schema = pa.schema([("x", arrow_type(kind))])
    return batch_of(pd.DataFrame({"x": pd.Series(values)}), schema, "America/Los_Angeles").column("x")


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        (t.DateType(), date(2024, 2, 3), 19756),
        (t.DateType(), pd.Timestamp("2024-02-03"), 19756),  # as MLflow makes of it
        (t.DateType(), date(9999, 12, 31), 2932896),
        (t.TimestampType(), NOON, 1706990400000000),  # 20:00 in UTC
        (t.TimestampType(), NOON.tz_localize("Asia/Tokyo"), 1706929200000000),
        (t.TimestampType(), pd.Timestamp("2024-11-03 01:30"), 1730626200000000),  # the second of two
        (t.TimestampNTZType(), NOON, 1706961600000000),
        (t.DayTimeIntervalType(), pd.Timedelta("1ms"), 1000),
        (t.DayTimeIntervalType(), timedelta(days=3), 259200000000),
    ],
)
def test_times_are_the_numbers_of_spark(kind, given, stored):
    column = taken(kind, given)
    assert column.view("int32" if isinstance(kind, t.DateType) else "int64").to_pylist() == [stored]
    (in_array,) = taken(t.ArrayType(kind), [given])
    assert in_array.values.equals(column)


def test_other_values_keep_their_types():
    assert taken(t.ByteType(), np.int32(3)).type == "int8"
    assert taken(t.ArrayType(t.FloatType()), np.array([1.5]), [2.5]).type.value_type == "float"
    assert taken(VectorUDT(), Vectors.sparse(2, {1: 3.0}), [0.0, 3.0]).field("values").to_pylist() == [[0.0, 3.0]] * 2
    assert taken(t.DecimalType(3, 1), Decimal("2.5"), None).to_pylist() == [Decimal("2.5"), None]
    assert taken(t.DecimalType(3, 1), 2.5).to_pylist() == [2.5]
    assert taken(t.StringType(), "a", None).to_pylist() == ["a", None]
    assert taken(t.DateType(), pd.NaT, None).null_count == 2
    if hasattr(t, "TimeType"):
        assert taken(t.TimeType(), time(0, 0, 1)).cast("int64").to_pylist() == [10**9]


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (t.ByteType(), 128, "'x' .int64, first: 128. can't be turned into int8.*128 not in range"),
        (t.LongType(), 1.5, "can't be turned into int64.*1.5"),
        (t.DateType(), datetime(2024, 2, 3, 4), "is more than a date"),
        (t.DateType(), 19756, "no unit"),
        (t.ArrayType(t.TimestampType()), [1706918400000000000], "no unit"),
        (t.FloatType(), 2**24 + 1, "16777217 not in range"),
    ],
)
def test_values_of_no_such_type_are_refused_by_column(kind, given, told):
    with pytest.raises(FeedError, match=told):
        taken(kind, given)
