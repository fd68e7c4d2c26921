"""Steps of files whose rows are counted as they are read: as many for all, and no more than an epoch needs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.file_feeds import FileFeeds
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.rendezvous import Rendezvous
from tensorflowonspark.feed_messages import (
    FeedComplete,
    FileFeed,
    FilesCounted,
    FilesRead,
    RowsCounted,
    RowsRead,
    Shares,
    StepGrant,
    StreamOpened,
)
from tensorflowonspark.node.feed.plan import plan_epoch
from tests.support.scripted import take_steps

FEED = FileFeed(7)


class Stream:
    """The driver's part of files that some workers have listed."""

    def __init__(self, workers, send):
        spec = ClusterSpec(num_workers=workers)
        self.nodes = [Node(number, role) for number, role in enumerate(spec.roles)]
        self.feeds = FileFeeds(send, Rendezvous())
        for node in self.nodes:
            assert self.feeds.receive(node, FilesRead(FEED, "read", "files", (), streams=True), self.nodes) is None

    def receive(self, number, message):
        self.feeds.report(self.nodes[number], message)


class Sent:
    """What the driver has sent to each worker."""

    def __init__(self, workers, batch_size=8):
        self.shares = [Shares(batch_size, len(workers), number) for number in workers]
        self.steps = {number: [] for number in workers}
        self.counts = {}
        self.ended = set()

    def __call__(self, number, message):
        if isinstance(message, RowsCounted):
            self.counts[number] = message.rows
            return
        if isinstance(message, FeedComplete):
            return  # all have listed the same files
        assert isinstance(message, StepGrant)
        assert number not in self.ended
        take_steps(self.steps[number], self.shares[number], message)
        if message.end:
            assert number in self.counts  # who has ended the pass knows all counts
            self.ended.add(number)


@pytest.mark.deep
@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=2, max_size=4), st.integers(4, 80), st.integers(1, 30), st.randoms())
def test_as_many_steps_as_the_worker_with_most_rows_needs(totals, batch_size, window, order):
    """In whatever order the workers read: a worker with fewer rows pads only when it has none left."""
    sent = Sent(range(len(totals)), batch_size)
    stream = Stream(len(totals), sent)
    reports = []
    for rows, shares in zip(totals, sent.shares, strict=True):
        own = [RowsRead(FEED, min(rows, read)) for read in range(window, rows + window, window) if rows]
        reports.append([StreamOpened(FEED, shares), *own, FilesCounted(FEED, rows)])
    while any(reports):
        number = order.choice([number for number, left in enumerate(reports) if left])
        stream.receive(number, reports[number].pop(0))
    plans = [plan_epoch(totals, batch_size, number, in_order=True) for number in range(len(totals))]
    for number, plan in enumerate(plans):  # an epoch that is resumed takes the same steps
        assert sent.steps[number] == [step.real for step in plan.steps_from(0)]
    assert sent.ended == set(range(len(totals)))
    assert sent.counts == {number: dict(enumerate(totals)) for number in range(len(totals))}


def test_a_worker_with_fewer_rows_does_not_hold_up_the_others():
    sent = Sent([0, 1])
    stream = Stream(2, sent)
    for number in (0, 1):
        stream.receive(number, StreamOpened(FEED, sent.shares[number]))
    stream.receive(0, RowsRead(FEED, 100))
    assert sent.steps[0] == []
    stream.receive(1, RowsRead(FEED, 6))
    assert sent.steps == {0: [4], 1: [4]}
    stream.receive(1, FilesCounted(FEED, 6))
    assert sent.steps[0] == [4] * 25
    assert sent.steps[1] == [4, 2] + [0] * 23
    assert not sent.ended | set(sent.counts)


def test_a_pass_that_counts_the_rows_ends_no_other():
    """A worker that counts its rows while a pass goes on has not read them all."""
    sent = Sent([0, 1])
    stream = Stream(2, sent)
    for number in (0, 1):
        stream.receive(number, StreamOpened(FEED, sent.shares[number]))
        stream.receive(number, FilesCounted(FEED, 8))
    assert sent.counts[0] == {0: 8, 1: 8}
    assert not sent.ended
    for number in (0, 1):
        stream.receive(number, RowsRead(FEED, 8))
    assert sent.steps == {0: [4, 4], 1: [4, 4]}
    assert sent.ended == {0, 1}


def test_a_worker_that_has_returned_is_not_waited_for():
    sent = Sent([0, 1])
    stream = Stream(2, sent)
    stream.receive(0, StreamOpened(FEED, sent.shares[0]))
    stream.receive(0, RowsRead(FEED, 10))
    stream.feeds.lose(stream.nodes[1])
    assert sent.steps[0] == [4, 4]
    stream.receive(0, FilesCounted(FEED, 10))
    assert sent.steps[0] == [4, 4, 2]
    assert sent.ended == {0}
    assert sent.counts == {0: {0: 10, 1: 0}}
