"""A DataFrame's schema is refused in the driver, with all columns that no tensor can hold, and why."""

from inspect import signature

import pytest
from pyspark.ml.linalg import MatrixUDT, VectorUDT
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from tensorflowonspark.columns import check_schema, kind_of
from tensorflowonspark.columns.layout import array_depth
from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import ColumnSummary

SCALARS = [
    types.ByteType(), types.ShortType(), types.IntegerType(), types.LongType(), types.FloatType(), types.DoubleType(),
    types.BooleanType(), types.StringType(), types.CharType(3), types.VarcharType(3), types.BinaryType(),
    types.DateType(), types.TimestampType(), types.TimestampNTZType(), types.DayTimeIntervalType(),
    types.DecimalType(10, 2), *([types.TimeType()] if hasattr(types, "TimeType") else []),
]  # fmt: skip
FED = [
    *SCALARS,
    *[ArrayType(kind) for kind in SCALARS],
    ArrayType(ArrayType(types.FloatType())),
    VectorUDT(),
    StructType()
    .add("a", "integer")
    .add("in", StructType().add("b", ArrayType(types.DoubleType())).add("v", VectorUDT())),
]
REFUSED = [
    (MapType(StringType(), StringType()), "a tensor has no keys"),
    (ArrayType(MapType(StringType(), StringType())), "a tensor has no keys"),
    (types.NullType(), "it has no values"),
    (ArrayType(types.NullType()), "it has no values"),
    (types.YearMonthIntervalType(), "cast it to int, which gives months"),
    (StructType(), "it has no fields"),
    (ArrayType(StructType().add("a", "integer")), "take its fields as arrays"),
    (ArrayType(VectorUDT()), "an array of vectors: convert it to an array of arrays"),
    (MatrixUDT(), "only Spark ML's vectors can be fed"),
    *[
        (getattr(types, name)(), reason)
        for name, reason in [("VariantType", "variant_get"), ("CalendarIntervalType", "its length in time varies")]
        if hasattr(types, name)
    ],
    *([(types.GeometryType(0), "no tensor can hold it")] if hasattr(types, "GeometryType") else []),
]


@pytest.mark.parametrize("kind", FED, ids=lambda kind: kind.simpleString())
def test_what_a_model_can_use_is_let_through(kind):
    check_schema(StructType().add("x", kind).add("y", "integer"))


@pytest.mark.parametrize(("kind", "reason"), REFUSED, ids=lambda each: getattr(each, "simpleString", lambda: "")())
def test_what_no_tensor_can_hold_is_refused_with_a_reason(kind, reason):
    with pytest.raises(FeedError) as caught:
        check_schema(StructType().add("good", "integer").add("bad", kind))
    assert f"column 'bad' has type {kind.simpleString()}: " in str(caught.value)
    assert reason in str(caught.value)
    assert "good" not in str(caught.value)


def test_all_columns_that_can_not_be_fed_are_named_those_in_structs_too():
    inside = StructType().add("tags", MapType(StringType(), StringType())).add("fine", "integer")
    with pytest.raises(FeedError, match=r"'a' has type void: .*; column 's\.tags' has type map<string,string>: "):
        check_schema(StructType().add("a", types.NullType()).add("s", inside))


def test_a_dataframe_without_columns_is_refused():
    with pytest.raises(FeedError, match="has no columns"):
        check_schema(StructType())


def test_a_name_must_be_that_of_one_column():
    with pytest.raises(FeedError, match="several columns of the name 'x'"):
        check_schema(StructType().add("x", "integer").add("x", "integer"))
    with pytest.raises(FeedError, match=r"several columns of the name 's\.a'"):
        check_schema(StructType().add("s", StructType().add("a", "integer")).add("s.a", "integer"))


@pytest.mark.parametrize(
    "kind", [kind for kind in FED[:-1] if "char" not in kind.simpleString()], ids=lambda kind: kind.simpleString()
)
def test_what_is_let_through_has_a_kind_in_numpy(kind):
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
    arrow = to_arrow_type(kind, **zone)
    assert kind_of("x", arrow, ColumnSummary(), shape=(1,) * array_depth(arrow) or None).dtype is not None
