"""Whether a program that resumes within an epoch gets the rows of the steps that it has not taken."""

import logging

import pytest

from tensorflowonspark.node.checkpoint.position import ResumePosition
from tensorflowonspark.node.checkpoint.store import SavedCheckpoint


class Feeds:
    """The feeds of a node, of which the second one is current."""

    current, first, arriving = 1, 0, None

    def __init__(self, fingerprint):
        self.fingerprint = fingerprint
        self.begun_at = None

    def resume_at(self, epoch, step):
        self.begun_at = epoch, step
        return True


@pytest.mark.parametrize(
    ("saved", "begin", "why"),
    [
        ({"feed": 1, "workers": 2, "rows": 77}, (3, 10), ""),
        ({"feed": 1, "workers": 2}, (3, 10), ""),  # by an earlier version
        ({"feed": 1, "workers": 3, "rows": 77}, (3, 0), "step-1 was written by 3 workers, and there are 2 now"),
        ({"feed": 1, "workers": 2, "rows": 78}, (3, 0), "with other rows, or the same in other partitions"),
        ({"feed": 2, "workers": 2, "rows": 77}, (3, 0), ""),
        ({"feed": 0, "workers": 2, "rows": 78}, (0, 0), ""),  # a feed that was complete
    ],
)
def test_an_epoch_goes_on_with_the_same_rows_or_begins_again(caplog, saved, begin, why):
    feeds = Feeds(77)
    position = ResumePosition(feeds, link=None, workers=2)
    with caplog.at_level(logging.WARNING):
        assert position.resume(SavedCheckpoint("step-1", 0, 100, 3, {}, batch=10, **saved)) == begin
    assert why in caplog.text
    assert bool(caplog.text) is bool(why)
    assert feeds.begun_at in (None, begin)


def test_a_checkpoint_within_an_epoch_records_its_rows():
    position = ResumePosition(Feeds(77), link=None, workers=2)
    assert position.describe(10) == {"batch": 10, "feed": 1, "workers": 2, "rows": 77}
    assert position.describe(0) == {"batch": 0, "feed": 1, "workers": 2}
