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


def _start(directory, name, kind, host, *arguments, addressed=True, through=()):
    import pyspark

    home = Path(pyspark.__file__).parent
    daemon = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
    address = address_of(host)
    own = ["--host", address] if addressed else []
    spark = [*through, str(home / "bin/spark-class"), daemon, *own, "--webui-port", "0", *arguments]
    local = str(directory) if isinstance(host, str) else "/tmp"
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": local, "SPARK_LOCAL_IP": address}
    if not addressed:
        del environment["SPARK_LOCAL_IP"]
    command = ["sh", "-c", '"$@" & read -r _; kill $!; wait', "sh", *spark]  # the daemon ends with this process
    start = subprocess.Popen if isinstance(host, str) else host.popen
    with open(Path(directory) / f"{name}.log", "wb") as log:
        return start(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log)


def address_of(host):
    """Return the address of a host as Spark writes it."""
    address = host if isinstance(host, str) else host.address
    return f"[{address}]" if ":" in address else address


def unused_port():
    """Return a port that nothing uses, below those that the system gives to connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def _wait_until_up(host, port):
    """Wait until the master listens: a worker that finds none tries again after 5 to 15 s only."""
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            return socket.create_connection((host.strip("[]"), port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < end, f"no Spark master listens at port {port}"
            time.sleep(0.1)


def start_worker(directory, master, number, cores, memory="3g", host="127.0.0.1", work="", **options):
    """Start a worker; return its process.

    With ``addressed=False`` Spark finds its address out by the host's name; ``through`` is a command that starts it.
    """
    folder = work or str(Path(directory) / f"work-{number}")
    arguments = ["--cores", str(cores), "--memory", memory, "--work-dir", folder]
    return _start(directory, f"worker-{number}", "Worker", host, *arguments, master, **options)


@contextmanager
def standalone_cluster(directory, cores, memory="3g", hosts=("127.0.0.1",), master="127.0.0.1"):
    """Start a master and workers; yield the master's URL.

    Parameters
    ----------
    directory : str or pathlib.Path
        For logs and work directories.
    cores : sequence of int
        Of each worker.
    memory : str
        Of each worker, as Spark writes it.
    hosts : sequence of str or tests.support.hosts.Host
        Addresses of this machine, or hosts, that the workers take in turn.
    master : str or tests.support.hosts.Host
        Likewise that of the master.
    """
    port = unused_port()
    url = f"spark://{address_of(master)}:{port}"
    processes = [_start(directory, "master", "Master", master, "--port", str(port))]
    try:
        _wait_until_up(address_of(master), port)
        for number, each in enumerate(cores):
            processes.append(start_worker(directory, url, number, each, memory, hosts[number % len(hosts)]))
        yield url
    finally:
        for process in reversed(processes):
            with suppress(BrokenPipeError):  # its host was killed
                process.stdin.close()
            process.wait(30)
