"""Models on the executors stay for as long as a DataFrame needs them, and no longer."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from tensorflowonspark.frames import map_blocks
from tests.support.programs import wait_for

pytestmark = [pytest.mark.masters("local", "local-cluster"), pytest.mark.timeout(240)]
MODELS, MOST = 24, 12


def with_model(df, number):
    """Return a DataFrame with a column that a model of its own makes, of a megabyte."""
    weights = np.full(1 << 17, number, "float64")

    def add(id):  # noqa: A002 - the column
        return {"y": id + weights[-1]}

    return map_blocks(add, df)


def files_of(spark):
    """Return how many models are in files of the driver, and how many in those of executors, or cached by them."""
    context = spark.sparkContext
    local = Path(context.getConf().get("spark.local.dir"))
    return len(os.listdir(context._temp_dir)), len(list(local.rglob("broadcast_*_python*")))


@pytest.mark.slow
def test_a_loop_over_many_models_leaves_few(spark):
    df, (before, there) = spark.range(4), files_of(spark)
    first = with_model(df, 1000)  # computed only at the end
    for number in range(MODELS):
        frame = with_model(df, number)
        assert [row.y for row in frame.collect()] == [number, number + 1, number + 2, number + 3]
        del frame
        if number % 4 == 3:
            gc.collect()
            spark.sparkContext._jvm.System.gc()  # which comes by itself in a driver that works
    assert not spark.sparkContext.listFiles  # of which each task would have the names of all

    def few():
        gc.collect()
        spark.sparkContext._jvm.System.gc()
        with_model(df, np.random.default_rng().random())  # the next one removes the files of earlier ones
        in_driver, on_executors = files_of(spark)
        return in_driver - before <= MOST and on_executors - there <= MOST

    wait_for(few, seconds=60)
    assert [row.y for row in first.collect()] == [1000, 1001, 1002, 1003]


@pytest.mark.slow
def test_a_model_is_sent_once_for_several_dataframes(spark):
    df = spark.range(4)
    with_model(df, 5).collect()
    had, _ = files_of(spark)
    for _ in range(10):  # as the micro-batches of a stream
        with_model(df, 5).collect()
    assert files_of(spark)[0] == had
