import pytest
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tensorflowonspark.driver.feeding import check_frame
from tensorflowonspark.errors import FeedError


class Frame:
    """A DataFrame's schema, which is all that is looked at."""

    def __init__(self, **columns):
        self.schema = t.StructType([t.StructField(name, kind) for name, kind in columns.items()])
        self.columns = list(columns)


def test_what_can_be_fed():
    check_frame(
        Frame(a=t.LongType(), b=t.ArrayType(t.FloatType()), c=t.StringType(), d=t.BinaryType(), e=t.BooleanType())
    )


@pytest.mark.parametrize("kind", [t.DateType(), t.MapType(t.StringType(), t.LongType()), t.DecimalType(10, 2)])
def test_what_can_not_is_named(kind):
    with pytest.raises(FeedError, match="column 'bad' has type"):
        check_frame(Frame(good=t.LongType(), bad=kind))


def test_vectors_are_told_how_to_be_converted():
    from pyspark.ml.linalg import VectorUDT

    with pytest.raises(
        FeedError, match="column 'features' has type.*vector_to_array|column 'features' has type struct"
    ):
        check_frame(Frame(features=VectorUDT()))


def test_no_columns():
    with pytest.raises(FeedError, match="no columns"):
        check_frame(Frame())


@pytest.mark.masters("local")
def test_a_real_frame(spark):
    check_frame(spark.range(3).select(f.array(f.col("id").cast("float")).alias("x")))
