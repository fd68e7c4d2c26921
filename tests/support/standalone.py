"""A standalone Spark cluster of processes from the pyspark wheel, on loopback.

It needs pyspark alone: the benchmarks start it with the Python of TensorFlowOnSpark 2.2.5, too.
"""

import os
import random
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

_START_SECONDS = 180.0


def _start(directory, name, kind, host, *arguments, network=None):
    import pyspark

    home = Path(pyspark.__file__).parent
    daemon = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
    spark = [str(home / "bin/spark-class"), daemon, "--host", host, "--webui-port", "0", *arguments]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_LOCAL_IP": host,
    }
    with open(Path(directory) / f"{name}.log", "wb") as log:
        if network is not None:
            local = environment["SPARK_LOCAL_DIRS"] = str(Path(directory) / "local")
            mounts = [f"mkdir -p {local}", *(f"mount -t tmpfs tmpfs {path}" for path in (local, "/dev/shm"))]
            return network.start(spark, host, mounts, env=environment, stdout=log, stderr=log)
        command = ["sh", "-c", '"$@" & read -r _; kill $!; wait', "sh", *spark]  # the daemon ends with this process
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log)


def unused_port():
    """Return a port that nothing uses, below those that the system gives to connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def _wait_until_up(host, port):
    """Wait until the master listens: an application that finds none gives up after a minute."""
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            return socket.create_connection((host, port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < end, f"no Spark master listens at port {port}"
            time.sleep(0.1)


def start_worker(directory, master, number, cores, memory="3g", host="127.0.0.1", network=None):
    """Start a worker; return its process."""
    options = ["--cores", str(cores), "--memory", memory, "--work-dir", str(Path(directory) / f"work-{number}")]
    return _start(directory, f"worker-{number}", "Worker", host, *options, master, network=network)


@contextmanager
def standalone_cluster(directory, cores, memory="3g", hosts=("127.0.0.1",), network=None):
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
    network : tests.support.hosts.Network, optional
        Each worker is on a host of its own there, in place of these addresses.
    """
    port, own = unused_port(), network.address if network else "127.0.0.1"
    url = f"spark://{own}:{port}"
    processes = [_start(directory, "master", "Master", own, "--port", str(port))]
    for number, each in enumerate(cores):
        host = network.next_address() if network else hosts[number % len(hosts)]
        processes.append(start_worker(directory, url, number, each, memory, host, network))
    try:
        _wait_until_up(own, port)
        yield url
    finally:
        for process in reversed(processes):
            process.stdin.close()
            process.wait(30)
