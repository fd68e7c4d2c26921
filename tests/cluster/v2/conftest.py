"""Fixtures that start clusters of 2.x and end them with their test."""

import pickle
from pathlib import Path

import pytest

from tensorflowonspark import TFCluster


@pytest.fixture
def start():
    """Return `TFCluster.run`; the clusters end with the test."""
    clusters = []

    def started(spark, *arguments, **settings):
        clusters.append(TFCluster.run(spark.sparkContext, *arguments, **settings))
        return clusters[-1]

    yield started
    for cluster in clusters:
        cluster._cluster._attempt.abort()
        cluster.server.close()


@pytest.fixture
def run(start):
    """Return a function that starts a cluster whose programs write their results to files."""

    def started(spark, program, directory, nodes=1, ps=0, **settings):
        def writing(args, ctx):
            Path(args, f"{ctx.job_name}-{ctx.task_index}").write_bytes(pickle.dumps(program(args, ctx)))

        return start(spark, writing, str(directory), nodes, ps, **settings)

    return started
