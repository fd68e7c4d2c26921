"""``KerasModel.transform`` of very many rows: how far it is, and what it does without the memory for a call."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pyspark.ml import PipelineModel

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml import KerasModel

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


def doubled(x):
    return x * 2


def stage_of(function):
    return KerasModel.from_function(function, {"y": ("float32", ())}, featuresCol="x")


def run(frame):
    frame.write.format("noop").mode("overwrite").save()


def test_rows_are_counted_as_often_as_they_are_asked_for(spark, caplog):
    stage = stage_of(doubled)
    rows = spark.range(1000).repartition(5).selectExpr("id", "float(id) as x")
    with caplog.at_level("INFO"), stage.progress(total=2007) as progress:
        assert progress.rows == 0
        run(stage.transform(rows))
        assert progress.rows == 1000
        run(PipelineModel([stage]).transform(rows.where("id < 7")))
        run(stage.transform(rows.where("id < 0")))
        both = stage.transform(rows)
        run(both.unionAll(stage.copy().setPredictionCol("again").transform(rows.limit(0))))
    assert progress.rows == 2007
    run(both)  # a DataFrame goes on counting
    assert progress.rows == 3007
    run(stage.transform(rows))
    assert progress.rows == 3007
    assert "transform: 2,007 rows of 2,007 in " in caplog.text


def fails_once(marker):
    """Return a function that kills its Python worker in its second call, once."""

    def function(x):
        if x.max() >= 500 and not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    return function


@pytest.mark.masters("local-cluster")
def test_a_partition_that_is_computed_again_counts_once(spark, tmp_path):
    stage = stage_of(fails_once(str(tmp_path / "killed")))
    rows = spark.range(0, 1000, 1, 4).selectExpr("float(id) as x")
    with stage.progress() as progress:
        run(stage.transform(rows))
    assert (tmp_path / "killed").exists()
    assert progress.rows == 1000


def test_what_is_refused(spark):
    stage = stage_of(doubled)
    with stage.progress() as progress, pytest.raises(SpecError, match="counted already"), stage.progress():
        pass
    with pytest.raises(SpecError, match="counted already"), progress:
        pass


BAR = """
import sys, time
from pyspark.sql import SparkSession
from tensorflowonspark.ml import KerasModel

def slow(x):
    time.sleep(0.3)
    return x

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
stage = KerasModel.from_function(slow, {"y": ("float32", ())}, featuresCol="x")
with stage.progress(total=4000):
    stage.transform(spark.range(0, 4000, 1, 16).selectExpr("float(id) as x")).collect()
print("end")
"""


@pytest.mark.slow
def test_a_bar_on_a_terminal(tmp_path):
    (tmp_path / "program.py").write_text(BAR)
    shown = on_terminal([sys.executable, str(tmp_path / "program.py")])
    assert "rows/s" in shown
    assert {*re.findall(r"([\d.]+k?)/4\.00k", shown)} - {"0.00", "4.00k"}
    assert shown.rstrip().endswith("end")


def on_terminal(command):
    """Return what a process writes to a terminal with a width."""
    import fcntl
    import pty
    import struct
    import termios

    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(command, stdout=its, stderr=its, stdin=its)
    os.close(its)
    found = b""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        found += part
    os.close(ours)
    assert process.wait(20) == 0, found
    return found.decode()


SMALL = """
import json, resource, sys
import keras, numpy as np, pyarrow as pa
from keras import layers
from tensorflowonspark.ml import KerasModel
from tensorflowonspark.ml.distribution import for_engine, loaded_here
from tensorflowonspark.ml.features import call_in_pieces

engine, size = sys.argv[1], 2048
stack = [layers.Dense(1024), layers.Reshape((32, 32, 1)), layers.Conv2D(256, 3), layers.GlobalAveragePooling2D()]
model = keras.Sequential([keras.Input((64,)), *stack])
call = loaded_here(for_engine(engine, KerasModel.from_keras(model)._complete_bundle, ())[0])
taken = []

def counting(features):
    taken.append(len(features["x"]))
    return call(features)

rows = np.random.default_rng(0).random((size, 64), np.float32)
expected = np.concatenate([next(iter(call({"x": rows[start : start + 64]}).values())) for start in range(0, size, 64)])
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (700 << 20), -1))
batch = pa.record_batch({"x": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 64)})
found = [next(iter(call_in_pieces(counting, {"x": rows}, batch, None).values())) for _ in range(2)]
print(json.dumps([float(max(abs(each - expected).max() for each in found)), taken]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["keras", "onnx"])
def test_a_call_without_memory_for_its_rows_takes_fewer(engine):
    """And so do the next ones: 2,048 rows would take 1.9 GB."""
    done = subprocess.run([sys.executable, "-c", SMALL, engine], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    difference, taken = json.loads(done.stdout.splitlines()[-1])
    assert difference < 1e-5
    assert taken[:2] == [2048, 1024]
    fits = taken[-1]
    assert taken.count(2048) == 1
    assert fits <= 512
    assert taken.count(fits) >= 2 * 2048 // fits
    assert f"the model with {2 * fits} rows: it takes {fits} at once from now on" in done.stderr


def test_one_row_that_is_too_large_is_the_error_of_the_library(spark):
    def never(x):
        raise MemoryError(f"{np.shape(x)} rows are too many")

    with pytest.raises(Exception, match=r"MemoryError: \(1,\) rows are too many"):
        stage_of(never).transform(spark.range(9).coalesce(1).selectExpr("float(id) as x")).collect()
