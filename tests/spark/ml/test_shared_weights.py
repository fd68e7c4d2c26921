"""A large model is in memory once for all Python workers of an executor."""

from pathlib import Path

import keras
import numpy as np
import psutil
import pytest
from keras import layers
from pyspark.sql import functions as f

from tensorflowonspark.ml import KerasModel
from tensorflowonspark.ml.shared_weights import SHARED_BYTES

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]
_ROWS, _WORKERS = 400, 2


def mapped():
    """Return the lines of maps of shared weights in each Python worker."""
    found = []
    for process in psutil.Process().children(recursive=True):
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        found += [line.split() for line in lines if "tfos-weights-" in line and line.endswith("model.weights.h5")]
    return found


@pytest.mark.slow
def test_the_workers_of_an_executor_map_one_file(spark):
    words = SHARED_BYTES // (64 * 4) + 1
    stack = [keras.Input((3,), dtype="int32"), layers.Embedding(words, 64), layers.Flatten(), layers.Dense(2)]
    model = keras.Sequential(stack)
    ids = [(f.col("id") * number % words).cast("int") for number in (1, 977, 655_357)]
    df = spark.range(0, _ROWS, 1, _WORKERS).select("id", f.array(*ids).alias("features"))
    stage = KerasModel.from_keras(model)
    rows = stage.transform(df).orderBy("id").collect()
    expected = model.predict(np.array([row.features for row in rows]), verbose=0)
    np.testing.assert_allclose([row.prediction for row in rows], expected, rtol=1e-5, atol=1e-7)
    maps = mapped()
    assert maps
    assert len({line[-1] for line in maps}) == 1  # the path
    assert Path(maps[0][-1]).is_relative_to(spark.conf.get("spark.local.dir"))
    again = stage.transform(df).orderBy("id").collect()
    assert [row.prediction for row in again] == [row.prediction for row in rows]
    assert {line[-1] for line in mapped()} == {maps[0][-1]}
