import pytest
from pyspark.sql import functions as f

from tensorflowonspark.driver.feed.job import check_frame


@pytest.mark.masters("local")
def test_a_real_frame(spark):
    check_frame(spark.range(3).select(f.array(f.col("id").cast("float")).alias("x")))
