"""Clusters of two nodes that are fed, one after another, as a driver's program.

It prints a line of JSON for each: the hosts and pids of the nodes, and whether each row came once in each epoch. Tests
run it on executors whose processes have equal pids; ``TFOS_TEST_FRESH=7`` has them run it that often.
"""

import json
import os
import shlex
import subprocess
import sys

from pyspark.sql import SparkSession

import tensorflowonspark as tfos
from tests.support.paths import ROOT, SUPPORT

_ROWS, _EPOCHS = 400, 2
_CLUSTERS = 3  # of one application
APPLICATIONS = range(int(os.environ.get("TFOS_TEST_FRESH", "1")))  # of a test, each with executors of its own


def count(args, ctx):
    import numpy as np

    epochs = []
    for _ in range(_EPOCHS):
        batches = list(ctx.batches(20, features=["id"]))
        real = [np.asarray(each["id"])[~np.signbit(np.asarray(each["sample_weight"]))] for each in batches]
        epochs.append(np.concatenate(real).tolist())
    return os.getpid(), ctx.host, epochs


def run_driver(module, settings, address, seconds=250):
    """Run a module of tests as a driver with settings of Spark, at an address of this machine; return what it prints.

    Returns
    -------
    list
        The values of the lines of JSON.
    """
    settings = {**settings, "spark.executorEnv.PYTHONPATH": str(SUPPORT / "equal_pids")}
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]),
        "SPARK_LOCAL_IP": address,
    }
    done = subprocess.run(
        [sys.executable, "-m", module],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert not done.returncode, done.stderr[-3000:]
    print(done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check_fed_clusters(settings, address):
    """Run the program with settings of Spark, at an address of this machine; check what it prints."""
    clusters = run_driver("tests.support.fed_cluster", settings, address)
    assert len(clusters) == _CLUSTERS
    for each in clusters:
        assert each["whole"]
        assert len(set(each["hosts"])) == 2
        assert all(5000 < pid < 5100 for pid in each["pids"])  # in namespaces of their own


def main():
    spark = SparkSession.builder.getOrCreate()
    for _ in range(_CLUSTERS):
        with tfos.Cluster(spark, count, num_workers=2) as cluster:
            cluster.train(spark.range(0, _ROWS, 1, 6), feed_timeout=60)
            results = cluster.join().values()
        pids, hosts, epochs = zip(*results, strict=True)
        whole = all(sorted(sum(parts, [])) == list(range(_ROWS)) for parts in zip(*epochs, strict=True))
        print(json.dumps({"pids": pids, "hosts": hosts, "whole": whole}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
