"""What a node keeps of the driver's messages about a feed."""

from multiprocessing import Pipe

import pytest

from tensorflowonspark.feed_messages import FeedBegins, FeedComplete, FileFeed, RowsCounted, SplitManifest, StepGrant
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.supervisor_pipe import SupervisorPipe

begins = FeedBegins(0, SplitManifest({0: 0}), kept=True)
complete = FeedComplete(0, SplitManifest({0: 7}))
failed = StepGrant(0, end=True, failed="no good")


@pytest.fixture
def link(monkeypatch):
    monkeypatch.setattr(SupervisorPipe, "start", lambda *_: None)
    own, other = Pipe()
    yield Link(own)
    own.close()
    other.close()


@pytest.mark.parametrize(
    ("messages", "opened", "arrived"),
    [
        ([complete], complete, complete),
        ([begins], begins, None),
        ([begins, complete], begins, complete),  # a program that comes late takes the steps that the others took
        ([begins, failed, complete], complete, complete),  # another feed, which got the number of one that failed
    ],
)
def test_a_program_opens_a_feed_by_the_first_message_about_it(link, messages, opened, arrived):
    for message in messages:
        link._on_message(message)
    assert link.feeds.wait_for_feed(0) is opened
    assert link.feeds.arrived(0) is arrived


def test_a_feed_with_the_number_of_one_that_failed_has_grants_of_its_own(link):
    grant = StepGrant(0, steps=((2, 20),))
    for message in (begins, StepGrant(0, steps=((9, 90),)), failed, begins, grant):
        link._on_message(message)
    assert link.feeds.wait_for_feed(0) is begins
    assert link.feeds.wait_for_grant(0) is grant
    assert link.feeds.wait_for_step(0, 1) == 2
    link._on_message(failed)  # the program that has opened it is told
    link._on_message(begins)
    assert link.feeds.wait_for_grant(0) is failed


def test_counts_of_files_come_apart_from_their_completion(link):
    feed = FileFeed(0)
    listed = FeedComplete(feed, SplitManifest({0: 7}))
    link._on_message(listed)
    assert link.feeds.counts(feed) is None
    link._on_message(RowsCounted(feed, {1: 5}))
    assert link.feeds.wait_for_counts(feed) == link.feeds.counts(feed) == {1: 5}
    assert link.feeds.wait_for_rows(feed) is listed
