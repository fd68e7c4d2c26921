"""RDDs that are fed as Arrow batches, and workers that take no steps together."""

import pyarrow as pa
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend, ScriptedJob, returns


class OnePartition:
    """An RDD of one partition, without Spark."""

    def __init__(self, elements):
        self.elements = elements

    def mapPartitions(self, function):  # noqa: N802 - as of an RDD
        return list(function(iter(self.elements)))


def to_batches(elements):
    for each in elements:
        yield pa.record_batch({"x": each})


def test_a_function_gets_the_batches_of_a_partition():
    seen = []

    def function(batches):
        seen.extend(batch.to_pydict() for batch in batches)
        yield pa.record_batch({"parts": [b"a", b"b"]})

    rows = BatchRDD(OnePartition([[1, 2], [3]]), to_batches).map_in_arrow(function)
    assert seen == [{"x": [1, 2]}, {"x": [3]}]
    assert [row.parts for row in rows] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "an RDD is fed with cache=None"),
        ({"cache": None, "validation": object()}, "without validation rows"),
    ],
)
def test_what_an_rdd_is_not_fed_with(settings, words):
    backend = ScriptedBackend(returns(1))
    with cluster_on(backend) as cluster, pytest.raises(tfos.FeedError, match=words):
        cluster.train(BatchRDD(OnePartition([]), to_batches), **settings)


@pytest.mark.usefixtures("unchecked_frames")
def test_independent_workers_take_rows_as_they_come():
    backend = ScriptedBackend(returns(1))
    with cluster_on(backend) as cluster, pytest.raises(tfos.FeedError, match="cache=None"):
        cluster.train("frame", independent_workers=True)


def test_independent_workers_may_have_returned():
    data = BatchRDD(OnePartition([]), to_batches)
    backend = ScriptedBackend(returns(1), feed=ScriptedJob([]))
    with cluster_on(backend) as cluster:
        cluster.join()
        with pytest.raises(tfos.FeedError, match="has already returned"):
            cluster.train(data, cache=None)
        cluster.train(data, cache=None, independent_workers=True)
