"""A cluster on Kubernetes whose pods are killed as a whole: a test runs it as a driver, and reads what it prints.

python killed.py URL DIRECTORY
"""

import json
import sys
import time
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession

import tensorflowonspark as tfos
from tests.support.kubernetes.kubelet import KILLED, Api
from tests.support.programs import wait_for

REASONS = ['Evicted: Usage of EmptyDir volume "spark-local-dir-1" exceeds the limit "1Gi". ', "OOMKilled"]


def train(args, ctx):
    if ctx.attempt == 0:
        Path(args, str(ctx.index)).touch()
        time.sleep(600)
    return ctx.attempt


def kill_pods(cluster, api, directory):
    """Kill the pods of both workers, each for its reason, once both train."""
    wait_for(lambda: all(Path(directory, str(number)).exists() for number in (0, 1)), 100)
    pods = {each["status"].get("podIP"): each["metadata"]["name"] for each in api.get("pods")}
    for node, reason in zip(cluster.nodes, REASONS, strict=True):
        change = {"op": "add", "path": "/metadata/annotations", "value": {KILLED: reason}}
        api.patch(f"pods/{pods[node.host]}", change)


def main(url, directory):
    spark = SparkSession.builder.getOrCreate()
    with tfos.Cluster(spark, train, directory, num_workers=2, restarts=1) as cluster:
        Thread(target=kill_pods, args=(cluster, Api(url), directory), daemon=True).start()
        results = cluster.join()
    print(json.dumps({"results": results, "events": [[each.kind, each.text] for each in cluster.metrics().events]}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
