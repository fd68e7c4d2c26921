"""The end of a streaming feed, with a query that is played."""

from threading import Event
from types import SimpleNamespace

from tensorflowonspark.driver.feed.structured_streaming import StreamingFeed


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

    stream = SimpleNamespace(session=SimpleNamespace(is_over=False), end_stream=lambda: None)
    feed = StreamingFeed(Query(), stream, None, {}, close)
    assert closing.wait(10)
    assert not feed.wait(timeout=0.3)
    closed.set()
    assert feed.wait(timeout=10)
