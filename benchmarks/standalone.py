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


def _start(directory, name, kind, host, *arguments):
    import pyspark

    home = Path(pyspark.__file__).parent
    daemon = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
    command = [str(home / "bin/spark-class"), daemon, "--host", host, "--webui-port", "0", *arguments]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_LOCAL_IP": host,
    }
    with open(Path(directory) / f"{name}.log", "wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def start_worker(directory, master, number, cores, memory="3g", host="127.0.0.1"):
    """Start a worker; return its process."""
    options = ["--cores", str(cores), "--memory", memory, "--work-dir", str(Path(directory) / f"work-{number}")]
    return _start(directory, f"worker-{number}", "Worker", host, *options, master)


@contextmanager
def standalone_cluster(directory, cores, memory="3g", hosts=("127.0.0.1",)):
    """Start a master, and a worker for each number of cores, on each host in turn; yield the master's URL.

    Their logs and work directories are below `directory`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    processes = [_start(directory, "master", "Master", "127.0.0.1", "--port", str(port))]
    for number, each in enumerate(cores):
        processes.append(start_worker(directory, url, number, each, memory, hosts[number % len(hosts)]))
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
