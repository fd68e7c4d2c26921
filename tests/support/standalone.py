"""A standalone Spark cluster of processes from the pyspark wheel, on loopback.

It needs pyspark alone: the benchmarks start it with the Python of TensorFlowOnSpark 2.2.5, too.
"""

import os
import signal
import socket
import subprocess
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
    """Start a master and workers; yield the master's URL.

    Parameters
    ----------
    directory : str or pathlib.Path
        For logs and work directories.
    cores : sequence of int
        Of each worker.
    memory : str
        Of each worker, as Spark writes it.
    hosts : sequence of str
        Addresses that the workers take in turn.
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
