"""``tfos submit``: programs that make their own session, by the real spark-submit."""

import os
import sys

import pytest

from tests.support.commands import output_of, start_tfos
from tests.support.paths import ROOT

JOB = """
import sys

from pyspark.sql import SparkSession

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator


def build():
    import keras

    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def fit():
    frame = spark.createDataFrame([([float(each)], 2.0 * each) for each in range(16)], "x array<float>, y float")
    estimator = KerasEstimator(build, featuresCol="x", labelCol="y", numWorkers=1, epochs=1, batchSize=8)
    return estimator.setOptimizer("sgd").setLoss("mse").fit(frame).transform(frame).count()


def run():
    return tfos.run(spark, lambda args, ctx: 16)["worker:0"]


spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
print("got", globals()[sys.argv[2]](), "of", spark.sparkContext.appName, sys.argv[1:], flush=True)
spark.stop()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("work", ["run", pytest.param("fit", marks=pytest.mark.slow)])
def test_a_program_that_makes_its_own_session(tmp_path, work):
    (tmp_path / "job.py").write_text(JOB)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    environment["PYSPARK_PYTHON"] = sys.executable
    command = ["submit", "--master", "local[2]", "job.py", "7", work, "--x y"]
    process = start_tfos(*command, cwd=tmp_path, env=environment)
    output = output_of(process, 140)
    assert f"got 16 of job.py ['7', '{work}', '--x y']" in output.splitlines(), output
    assert process.returncode == 7  # the program's own
