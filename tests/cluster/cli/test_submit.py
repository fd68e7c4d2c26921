"""``tfos submit``: a program of Spark ML that makes its own session, by the real spark-submit."""

import os
import sys

import pytest

from tests.support.commands import output_of, start_tfos
from tests.support.paths import ROOT

JOB = """
import sys

from pyspark.sql import SparkSession

from tensorflowonspark.ml import KerasEstimator


def build():
    import keras

    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
frame = spark.createDataFrame([([float(each)], 2.0 * each) for each in range(16)], "x array<float>, y float")
estimator = KerasEstimator(build, featuresCol="x", labelCol="y", numWorkers=1, epochs=1, batchSize=8)
model = estimator.setOptimizer("sgd").setLoss("mse").fit(frame)
print("predicted", model.transform(frame).count(), "of", spark.sparkContext.appName, sys.argv[1:], flush=True)
spark.stop()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.smoke
@pytest.mark.timeout(150)
def test_a_program_that_fits_an_estimator(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    environment["PYSPARK_PYTHON"] = sys.executable
    process = start_tfos("submit", "--master", "local[2]", "job.py", "7", "--x y", cwd=tmp_path, env=environment)
    output = output_of(process, 140)
    assert "predicted 16 of job.py ['7', '--x y']" in output.splitlines(), output
    assert process.returncode == 7  # the program's own
