"""A whole training on YARN, with HDFS beside it."""

import os
import re
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyspark
import pytest

from tensorflowonspark import storage
from tensorflowonspark.node.checkpoint.store import CheckpointStore
from tests.support.commands import options_of, output_of, start_tfos
from tests.support.paths import ROOT, SUPPORT
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


def tfos_run(conf_dir, url, mode, *arguments):
    """Start ``tfos run`` on YARN, whose output goes to a pipe."""
    prepare_home(url, "ann")
    given = {**SETTINGS, "spark.yarn.appMasterEnv.TFOS_TEST_RUN": os.environ["TFOS_TEST_RUN"]}
    settings = {name: value for name, value in given.items() if name not in ("spark.master", "spark.submit.deployMode")}
    if mode == "cluster":
        del settings["spark.driver.host"]
        settings["spark.driver.memory"] = "512m"
    environment = {
        **os.environ,
        "HADOOP_CONF_DIR": conf_dir,
        "HADOOP_USER_NAME": "ann",
        "PYSPARK_PYTHON": sys.executable,
    }
    words = ["run", "--master", "yarn", "--deploy-mode", mode, *options_of(settings), *arguments]
    return start_tfos(*words, env=environment, start_new_session=True)


def application(output):
    """Return the id of the application that a line of ``tfos run`` names."""
    return re.search(r"\bapplication_\d+_\d+\b", output)[0]


def staged(url):
    """Return the directories in which ``tfos run`` has staged something."""
    files, _ = storage.file_system(url)
    return [each for each in files.ls("/user/ann") if "/.tfos-" in each["name"]]


def check_nothing_staged(mini_cluster):
    files, _ = storage.file_system(mini_cluster.url)
    assert not staged(mini_cluster.url) + files.ls("/user/ann/.sparkStaging", detail=False)
    cluster = psutil.Process(mini_cluster.process.pid)
    wait_for(lambda: not cluster.children(recursive=True), 30)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_an_unchanged_script(yarn, mini_cluster, hadoop_free, tmp_path, mode):
    script = [ROOT / "examples/mnist/script.py", "--epochs", "8"]
    logs = str(tmp_path / "logs") if mode == "client" else f"{mini_cluster.url}/user/ann/logs"
    process = tfos_run(yarn, mini_cluster.url, mode, "--workers", "2", "--log-dir", logs, *script)
    output = output_of(process, 180)
    assert process.returncode == 0, output
    files, within = storage.file_system(logs)
    for index in (0, 1):
        text = files.cat(f"{within}/worker-{index}.log").decode()
        assert float(text.rpartition(f"worker {index}: accuracy ")[2].split()[0]) > 0.8
    check_nothing_staged(mini_cluster)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_exit_code_and_the_error_come_from_cluster_mode(yarn, mini_cluster, hadoop_free, tmp_path):
    (tmp_path / "train.py").write_text("import sys; sys.exit(7)")
    process = tfos_run(yarn, mini_cluster.url, "cluster", tmp_path / "train.py")
    output = output_of(process, 180)
    assert process.returncode == 7, output
    assert "its program called sys.exit(7)" in output
    check_nothing_staged(mini_cluster)


WAITING = """
import pathlib, signal, sys, time
begun, ended = map(pathlib.Path, sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(ended.touch()))
begun.touch()
time.sleep(600)
"""
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


@pytest.fixture
def start(yarn, mini_cluster, hadoop_free, tmp_path):
    """Start ``tfos run`` of a program, whose arguments are the paths that it makes at its begin and at its end."""
    processes = []

    def started(mode, program, *options):
        folder = tmp_path / str(len(processes))
        folder.mkdir()
        (folder / "train.py").write_text(program)
        paths = folder / "begun", folder / "ended"
        process = tfos_run(yarn, mini_cluster.url, mode, *options, folder / "train.py", *paths)
        processes.append(process)
        return process, *paths

    yield started
    for process in processes:
        process.kill()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_signal_ends_the_nodes_in_client_mode(start, mini_cluster):
    numbers = [signal.SIGTERM, signal.SIGHUP]
    runs = [start("client", WAITING, "--num-executors", "1") for _ in numbers]
    wait_for(lambda: all(begun.exists() for _, begun, _ in runs), 150)
    for (process, _, _), number in zip(runs, numbers, strict=True):
        process.send_signal(number)
    begin = time.monotonic()
    for (process, _, ended), number in zip(runs, numbers, strict=True):
        output = output_of(process, 60)
        assert process.returncode == 128 + number, output
        assert ended.exists()
    assert time.monotonic() - begin < 30
    check_nothing_staged(mini_cluster)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_signal_ends_the_nodes_in_cluster_mode_and_a_second_one_kills_them(start, mini_cluster):
    runs = [start("cluster", WAITING), start("cluster", STUBBORN, "--grace", "10m")]
    (ending, _, ended), (stubborn, _, _) = runs
    wait_for(lambda: all(begun.exists() for _, begun, _ in runs), 120)
    directories = staged(mini_cluster.url)
    assert [each["permission"] for each in directories] == [0o700, 0o700]  # they hold the values of --env
    for process in (ending, stubborn):
        process.send_signal(signal.SIGTERM)
    time.sleep(1)
    stubborn.send_signal(signal.SIGINT)
    for process, code in ((ending, 143), (stubborn, 130)):
        output = output_of(process, 60)
        assert process.returncode == code, output
    assert ended.exists()
    check_nothing_staged(mini_cluster)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_signal_kills_an_application_that_waits_for_a_container(start, mini_cluster):
    """No driver runs that could end it."""
    runs = [start(mode, WAITING, "--queue", "full") for mode in ("client", "cluster")]
    earlier = set(mini_cluster.applications())

    def applications():
        return {name: state for name, state in mini_cluster.applications().items() if name not in earlier}

    wait_for(lambda: list(applications().values()) == ["ACCEPTED"] * 2, 60)
    for process, _, _ in runs:
        process.send_signal(signal.SIGTERM)
    for process, begun, _ in runs:
        output = output_of(process, 60)
        assert process.returncode == 143, output
        assert not begun.exists()
    assert list(applications().values()) == ["KILLED"] * 2
    check_nothing_staged(mini_cluster)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_without_waiting_the_driver_removes_what_was_staged(start, mini_cluster):
    process, begun, ended = start("cluster", WAITING.replace("600", "5") + "ended.touch()", "--no-wait")
    output = output_of(process, 60)
    assert process.returncode == 0, output
    assert not ended.exists()
    wait_for(begun.exists, 90)
    assert not staged(mini_cluster.url)
    wait_for(lambda: mini_cluster.applications()[application(output)] == "FINISHED", 60)
    assert ended.exists()
    check_nothing_staged(mini_cluster)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_records_checkpoints_and_a_model_in_hdfs_in_cluster_mode(yarn, hadoop_free, mini_cluster, tmp_path):
    from tests.support.tfrecord_examples import example, floats, write

    directory = f"{mini_cluster.url}/user/ann/digits"
    prepare_home(mini_cluster.url, "ann")
    points = np.random.default_rng(1).uniform(-1, 1, (1000, 2))
    examples = [example(features=floats(*point), label=floats(point[0] > point[1])) for point in points]
    for index in (0, 1):
        write(tmp_path / f"part-{index}", *examples[index::2])
        storage.publish(f"{directory}/points.tfrecord/part-{index}", partial(shutil.copy, tmp_path / f"part-{index}"))
    files, within = storage.file_system(directory)
    files.client.set_owner(within, "ann", "ann")
    options = ["--workers", "2", "--data", f"{directory}/points.tfrecord", SUPPORT / "hdfs_script.py", directory]
    process = tfos_run(yarn, mini_cluster.url, "cluster", *options)
    output = output_of(process, 180)
    assert process.returncode == 0, output
    found = dict(re.findall(r"\[(worker:\d)\] epoch 5 accuracy ([\d.]+)", mini_cluster.log(application(output))))
    assert sorted(found) == ["worker:0", "worker:1"]  # on its executor, the chief's in the driver's log too
    assert min(map(float, found.values())) > 0.9
    assert CheckpointStore(f"{directory}/checkpoints", keep=1).latest().epoch == 5
    assert files.info(f"{within}/model")["owner"] == "ann"  # not who YARN runs as
    storage.fetch(f"{directory}/model", str(tmp_path / "model"))
    check_model(tmp_path / "model")
    check_nothing_staged(mini_cluster)


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
