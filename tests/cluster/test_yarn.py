"""A whole training on YARN, with HDFS beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest

from tensorflowonspark import storage
from tests.support.paths import SUPPORT
from tests.support.programs import wait_for

JARS = Path(pyspark.__file__).parent / "jars"
SETTINGS = {
    "spark.master": "yarn",
    "spark.submit.deployMode": "client",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.yarn.am.memory": "512m",
    "spark.yarn.jars": f"local:{JARS}/*",  # they are on this machine: nothing is uploaded
    "spark.executorEnv.TFOS_TEST_RUN": os.environ["TFOS_TEST_RUN"],
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@pytest.fixture
def yarn(mini_cluster):
    """The folder with YARN's settings."""
    return mini_cluster.yarn()


@pytest.mark.slow
@pytest.mark.timeout(300)  # one machine is driver, YARN, HDFS and two executors
def test_a_training(yarn, mini_cluster, hadoop_free, tmp_path):
    options = " ".join(f"--conf {name}={value}" for name, value in SETTINGS.items())
    environment = {
        **os.environ,
        "HADOOP_CONF_DIR": yarn,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
        "HADOOP_USER_NAME": "ann",
    }
    prepare_home(mini_cluster.url, "ann")
    command = [sys.executable, str(SUPPORT / "yarn_program.py"), f"{mini_cluster.url}/user/ann/data"]
    leash, held = os.pipe()  # the program ends when this process does, and with it its containers
    with open(leash) as stdin, open(held, "w"):
        done = subprocess.run(
            command, check=False, env=environment, stdin=stdin, capture_output=True, text=True, timeout=240
        )
    assert not done.returncode, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert sorted(results) == ["worker:0", "worker:1"]
    assert sum(result["rows"] for result in results.values()) == 1000
    assert results["worker:0"]["epoch"] == 5
    assert min(result["accuracy"] for result in results.values()) > 0.9
    model = f"{mini_cluster.url}/user/ann/model"
    assert results["worker:0"]["model"] == model
    files, within = storage.file_system(model)
    assert files.info(within)["owner"] == "ann"  # not who YARN runs as
    assert storage.fetch(model, str(tmp_path / "model"))
    check_model(tmp_path / "model")
    cluster = psutil.Process(mini_cluster.process.pid)
    wait_for(lambda: not cluster.children(recursive=True), 20)


def prepare_home(url, user):
    """Make a user's home, as the administrator does."""
    files, _ = storage.file_system(url)
    files.makedirs(f"/user/{user}", exist_ok=True)
    files.client.set_owner(f"/user/{user}", user, user)


def check_model(folder):
    import tensorflow as tf

    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    (scores,) = serve(tf.constant([[0.9, -0.9], [-0.9, 0.9]])).values()
    assert scores[0] > 0.5 > scores[1]
