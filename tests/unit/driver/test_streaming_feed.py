"""The end of a streaming feed, with a query that is played."""

import pickle
from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.feed.structured_streaming import MicroBatches, StreamingFeed
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import CacheConfig
from tensorflowonspark.messages import Failed, Returned
from tests.support.backend import cluster_on
from tests.support.scripted import ScriptedBackend


class Query:
    """A query that has ended, and its writer."""

    isActive = False  # noqa: N815 - pyspark's names
    writeStream = property(lambda self: self)  # noqa: N815

    def foreachBatch(self, _feed):  # noqa: N802
        return self

    def start(self):
        return self

    def stop(self):
        pass

    def exception(self):
        return None


def test_who_waits_for_the_end_of_a_stream_returns_when_another_feed_may_follow():
    closing, closed = Event(), Event()

    def close():
        closing.set()
        closed.wait(10)

    session = SimpleNamespace(is_over=False, end=lambda: None)
    feed = StreamingFeed(Query(), MicroBatches(session, close), None, {})
    assert closing.wait(10)
    assert not feed.wait(timeout=0.3)
    closed.set()
    assert feed.wait(timeout=10)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_streaming_dataframe_is_not_repeated_after_a_failure(streamed):
    """Spark has acknowledged its rows. So the failure is raised, although a restart is allowed."""
    dies = Event()

    def script(node):
        if node.plan.config.attempt:
            node.send(Returned(pickle.dumps("again")))
        else:
            dies.wait(10)
            node.send(Failed(FailureKind.KILLED, "it was killed"))

    backend = ScriptedBackend(script)
    outcome = pytest.raises(tfos.NodeError, match="it was killed") if streamed else nullcontext()
    with outcome, cluster_on(backend, restarts=1) as cluster:
        if streamed:
            cluster._run.open_stream(FeedRequest("frame", cache=CacheConfig.parse(None, None)))
            cluster._run.close_stream()
        dies.set()
        assert cluster.join() == {"worker:0": "again"}
    assert len(backend.plans) == (1 if streamed else 2)
