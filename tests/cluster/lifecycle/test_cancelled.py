"""Whoever cancels the caller's job group ends the training, which is not restarted."""

import threading
import time

import pytest
from pyspark import InheritableThread

import tensorflowonspark as tfos
from tests.support.programs import wait_for

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(120)]


@pytest.fixture
def in_group(spark):
    """Return a function that runs another one in a thread with a job group, and returns what that raises."""
    context = spark.sparkContext

    def run(train, begun):
        raised = []

        def call():
            context.setJobGroup("mine", "a training of mine")
            try:
                train()
            except BaseException as error:
                raised.append((error, time.monotonic()))

        thread = InheritableThread(target=call)
        thread.start()
        wait_for(begun.exists, seconds=60)
        cancelled = time.monotonic()
        context.cancelJobGroup("mine")
        thread.join(60)
        ((error, when),) = raised
        return error, when - cancelled

    return run


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_held_cluster_ends(spark, in_group, tmp_path, restarts):
    begun = tmp_path / "begun"

    def train(path, ctx):
        path.touch()
        threading.Event().wait(600)

    error, seconds = in_group(lambda: tfos.run(spark, train, begun, num_workers=2, restarts=restarts), begun)
    assert isinstance(error, tfos.ClusterError)
    assert "the Spark tasks that hold the nodes were cancelled: " in str(error)
    assert "job group mine" in str(error)
    assert seconds < 20


def test_a_feed_ends(spark, in_group, tmp_path):
    begun = tmp_path / "begun"

    def slow(batches):
        begun.touch()
        time.sleep(600)
        yield from batches

    def fed():
        with tfos.Cluster(spark, lambda args, ctx: ctx.feed().rows, num_workers=2) as cluster:
            cluster.train(spark.range(2).mapInArrow(slow, "id long"))

    error, seconds = in_group(fed, begun)
    assert isinstance(error, tfos.FeedError)
    assert "job group mine" in str(error)
    assert seconds < 20
