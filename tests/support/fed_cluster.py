"""Clusters of two nodes that are fed, one after another, as a driver's program.

It prints a line of JSON for each: the hosts and pids of the nodes, and whether each row came once in each epoch.

python fed_cluster.py TIMEOUT [COUNT]
"""

import json
import os
import shlex
import subprocess
import sys

from pyspark.sql import SparkSession

import tensorflowonspark as tfos

_ROWS, _EPOCHS = 400, 2


def count(args, ctx):
    import numpy as np

    epochs = []
    for _ in range(_EPOCHS):
        batches = list(ctx.batches(20, features=["id"]))
        real = [np.asarray(each["id"])[~np.signbit(np.asarray(each["sample_weight"]))] for each in batches]
        epochs.append(np.concatenate(real).tolist())
    return os.getpid(), ctx.host, epochs


def fed_clusters(settings, address, count, timeout=60, seconds=200):
    """Run the program with settings of Spark, at an address of this machine; return what it prints."""
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]),
        "SPARK_LOCAL_IP": address,
    }
    command = [sys.executable, __file__, str(timeout), str(count)]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=seconds)
    assert not done.returncode, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == count
    return found


def main(timeout, clusters="1"):
    spark = SparkSession.builder.getOrCreate()
    for _ in range(int(clusters)):
        with tfos.Cluster(spark, count, num_workers=2) as cluster:
            cluster.train(spark.range(0, _ROWS, 1, 6), timeout=float(timeout))
            results = cluster.join().values()
        pids, hosts, epochs = zip(*results, strict=True)
        whole = all(sorted(sum(parts, [])) == list(range(_ROWS)) for parts in zip(*epochs, strict=True))
        print(json.dumps({"pids": pids, "hosts": hosts, "whole": whole}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
