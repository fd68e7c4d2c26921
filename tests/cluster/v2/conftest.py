"""Clusters of 2.x that end with their test, whatever it came to."""

import pickle
from pathlib import Path

import pytest

from tensorflowonspark import TFCluster


@pytest.fixture
def start():
    """`TFCluster.run`; a test that fails leaves no cluster behind."""
    clusters = []

    def started(spark, *arguments, **settings):
        clusters.append(TFCluster.run(spark.sparkContext, *arguments, **settings))
        return clusters[-1]

    yield started
    for cluster in clusters:
        cluster._cluster._life.abort()
        cluster.server.close()


@pytest.fixture
def run(start):
    """What starts a cluster whose programs write to files what they return."""

    def started(spark, program, directory, nodes=1, ps=0, **settings):
        def writing(args, ctx):
            Path(args, f"{ctx.job_name}-{ctx.task_index}").write_bytes(pickle.dumps(program(args, ctx)))

        return start(spark, writing, str(directory), nodes, ps, **settings)

    return started
