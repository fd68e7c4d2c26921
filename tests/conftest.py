"""Real Spark in three shapes behind one fixture, and a look, after each test, at what was left behind."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import psutil
import pytest
from pyspark import cloudpickle as spark_cloudpickle

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

MASTERS = ["local", "local-cluster", "standalone"]
_GONE_SECONDS = 8.0


def pytest_generate_tests(metafunc):
    if "spark" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("masters")
        metafunc.parametrize("spark", marker.args if marker else MASTERS, indirect=True, scope="session")


def pytest_collection_modifyitems(items):
    # The nodes can't import the tests: what these ship to them goes by value.
    for module in {item.module for item in items}:
        cloudpickle.register_pickle_by_value(module)
        spark_cloudpickle.register_pickle_by_value(module)


def pytest_configure(config):
    config.addinivalue_line("markers", "masters(*names): run on these Spark masters only; by default on all three")


@pytest.fixture(scope="session")
def spark(request):
    """A session with two task slots: in the driver's process, one executor with both, or two with one each."""
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as scratch:
        daemons = _standalone(scratch) if request.param == "standalone" else None
        master = daemons[0] if daemons else {"local": "local[2]", "local-cluster": "local-cluster[1,2,1024]"}[request.param]
        session = (
            SparkSession.builder.master(master)
            .appName(f"tests on {request.param}")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.executor.cores", "1" if request.param == "standalone" else "2")
            .config("spark.executor.memory", "1g")
            .config("spark.local.dir", scratch)
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
        for daemon in daemons[1] if daemons else []:
            daemon.terminate()
            daemon.wait(20)


def _standalone(scratch):
    """Start a standalone master and a worker with two cores; return the URL and both processes."""
    import pyspark

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = Path(pyspark.__file__).parent
    url = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": scratch}

    def start(kind, *arguments):
        command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", "--host", "127.0.0.1"]
        log = open(Path(scratch) / f"{kind}.log", "wb")  # noqa: SIM115 - the process keeps it
        return subprocess.Popen([*command, "--webui-port", "0", *arguments], env=environment, stdout=log, stderr=log)

    master = start("Master", "--port", str(port))
    worker = start("Worker", "--cores", "2", "--memory", "3g", "--work-dir", str(Path(scratch) / "work"), url)
    return url, [worker, master]


def our_processes():
    """Return the supervisors, nodes and TensorBoards that descend from nothing but this test run's executors."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if re.search(r"-m tensorflowonspark\.(supervisor|node)", line) and process.info["status"] != "zombie":
            found.append(process)
    return found


def left_behind():
    """Return what of ours is still there: processes and directories."""
    directories = [str(path) for path in Path(tempfile.gettempdir()).rglob("tfos-*")]
    return [f"{process.pid}: {' '.join(process.cmdline())}" for process in our_processes()] + directories


@pytest.fixture(autouse=True)
def nothing_left(request):
    """Fail a test after which a process or a directory of ours is still there."""
    yield
    end = time.monotonic() + _GONE_SECONDS
    while (left := left_behind()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, f"left behind by {request.node.name}: {left}"
