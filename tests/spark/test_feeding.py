import pytest
from pyspark.sql import functions as f

from tensorflowonspark.driver.feed.job import check_frame
from tensorflowonspark.driver.run import _with_marks

pytestmark = pytest.mark.smoke


@pytest.mark.masters("local")
def test_a_real_frame(spark):
    check_frame(spark.range(3).select(f.array(f.col("id").cast("float")).alias("x")))


@pytest.mark.masters("local")
def test_marks_of_validation_rows_replace_no_column(spark):
    """Spark finds columns in any case: a mark named ``validation`` would replace a column ``Validation``."""
    rows = spark.createDataFrame([(1.0, "a")], ["Validation", "x"])
    frame, column = _with_marks(rows, rows)
    assert frame.columns == ["Validation", "x", column]
    assert [tuple(row) for row in frame.collect()] == [(1.0, "a", False), (1.0, "a", True)]
