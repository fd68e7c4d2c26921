"""A virtual environment that ``tfos run`` and ``tfos submit`` ship to YARN."""

import os
from pathlib import Path

import pyspark
import pytest

from tensorflowonspark import storage
from tests.support.commands import options_of, output_of, start_tfos
from tests.support.environments import make_venv
from tests.support.paths import ROOT

# The small environment lacks what drivers and nodes need, which is 1.5 GB.
PYTHONPATH = f"{Path(pyspark.__file__).parents[1]}:{ROOT / 'src'}"
SETTINGS = {
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
    "spark.executorEnv.TFOS_TEST_RUN": os.environ["TFOS_TEST_RUN"],
    "spark.executorEnv.PYTHONPATH": PYTHONPATH,
    "spark.ui.enabled": "false",
}
OF_MODES = {
    "client": {"spark.yarn.am.memory": "512m", "spark.driver.host": "127.0.0.1"},
    "cluster": {
        "spark.driver.memory": "512m",
        "spark.yarn.appMasterEnv.TFOS_TEST_RUN": os.environ["TFOS_TEST_RUN"],
        "spark.yarn.appMasterEnv.PYTHONPATH": PYTHONPATH,
    },
}


JOB = """
import sys

from pyspark.sql import SparkSession

from tensorflowonspark.ml import KerasEstimator


def build():
    import keras
    import only_here

    bias = keras.initializers.Constant(only_here.VALUE)
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, bias_initializer=bias)])


spark = SparkSession.builder.getOrCreate()
frame = spark.createDataFrame([([0.0], 42.0)] * 8, "x array<float>, y float")
estimator = KerasEstimator(build, featuresCol="x", labelCol="y", numWorkers=1, epochs=1, batchSize=8)
model = estimator.setOptimizer("sgd").setLoss("mse").fit(frame)
assert [float(row[0]) for row in model.transform(frame).select("prediction").distinct().collect()] == [42.0]


def module_of(_):
    import only_here

    return only_here.__file__


(path,) = spark.sparkContext.range(1).map(module_of).collect()
assert "/environment/lib/" in path, path
spark.stop()
sys.exit(int(sys.argv[1]))
"""


def on_yarn(conf_dir, folder, mode, command, *words):
    """Run a command with the environment; return its exit code and its output."""
    settings = {**SETTINGS, **OF_MODES[mode]}
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"HADOOP_CONF_DIR": conf_dir, "HADOOP_USER_NAME": "eve"}
    given = ["--master", "yarn", "--python-env", "venv", "--deploy-mode", mode, *options_of(settings)]
    process = start_tfos(command, *given, *words, env=environment, cwd=folder)
    output = output_of(process, 140)
    return process.returncode, output


def tfos_run(conf_dir, folder, mode):
    """Run a script that needs the environment on two workers; return the output of ``tfos run``."""
    code, output = on_yarn(conf_dir, folder, mode, "run", "--workers", "2", "--show", "all", "train.py")
    assert code == 0, output
    return output


@pytest.fixture
def conf_dir(mini_cluster, hadoop_free, tmp_path):
    """The folder with YARN's settings, for a user with a home and an environment."""
    files, _ = storage.file_system(mini_cluster.url)
    files.makedirs("/user/eve", exist_ok=True)
    files.client.set_owner("/user/eve", "eve", "eve")
    make_venv(tmp_path / "venv")
    return mini_cluster.yarn()


@pytest.mark.slow
@pytest.mark.timeout(300)  # two applications, and perhaps the start of YARN
def test_an_environment_is_shipped_once(conf_dir, mini_cluster, tmp_path):
    files, _ = storage.file_system(mini_cluster.url)
    (tmp_path / "train.py").write_text(
        "import only_here\nassert '/environment/lib/' in only_here.__file__\nprint('found', only_here.VALUE)\n"
    )

    def kept():
        paths = files.ls("/user/eve/.tfos/environments", detail=False)
        return {path: files.modified(path) for path in paths}

    output = tfos_run(conf_dir, tmp_path, "client")
    assert "later runs reuse it" in output
    assert {"[worker:0] found 42", "[worker:1] found 42"} <= set(output.splitlines())
    first = kept()
    assert len(first) == 1
    assert "later runs reuse it" not in tfos_run(conf_dir, tmp_path, "cluster")
    assert kept() == first


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "given", "exit_code"), [("client", 7, 7), ("cluster", 0, 0), ("cluster", 7, 1)])
def test_a_program_of_spark_ml_has_its_environment(conf_dir, tmp_path, mode, given, exit_code):
    (tmp_path / "job.py").write_text(JOB)
    code, output = on_yarn(conf_dir, tmp_path, mode, "submit", "job.py", given)
    assert code == exit_code, output
    assert "AssertionError" not in output
