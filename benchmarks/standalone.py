"""A standalone Spark cluster of processes from the pyspark wheel, on loopback, for benchmarks and tests.

Needs nothing but pyspark, so that it also runs beside TensorFlowOnSpark 2.2.5.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def standalone_cluster(directory, cores, memory="3g", hosts=("127.0.0.1",)):
    """Start a master, and a worker for each number of cores, on each host in turn; yield the master's URL.

    Their logs and work directories are below `directory`.
    """
    import pyspark

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = Path(pyspark.__file__).parent
    url = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(directory),
    }
    processes = []

    def start(name, kind, host, *arguments):
        daemon = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        command = [str(home / "bin/spark-class"), daemon, "--host", host, "--webui-port", "0", *arguments]
        with open(Path(directory) / f"{name}.log", "wb") as log:
            its_own = {**environment, "SPARK_LOCAL_IP": host}
            processes.append(subprocess.Popen(command, env=its_own, stdout=log, stderr=log))

    start("master", "Master", "127.0.0.1", "--port", str(port))
    for number, each in enumerate(cores):
        work = str(Path(directory) / f"work-{number}")
        options = ["--cores", str(each), "--memory", memory, "--work-dir", work]
        start(f"worker-{number}", "Worker", hosts[number % len(hosts)], *options, url)
    try:
        yield url
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@contextmanager
def two_one_core_workers(memory="3g", **settings):
    """Yield a session on a standalone cluster of two one-core workers, as TensorFlowOnSpark 2.x asked for.

    `settings` are Spark's, with underscores for the dots in their names.
    """
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as scratch, standalone_cluster(scratch, [1, 1], memory) as master:
        builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
        for name, value in settings.items():
            builder = builder.config(name.replace("_", "."), value)
        spark = builder.getOrCreate()
        yield spark
        spark.stop()
