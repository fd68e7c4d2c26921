"""Whether a program that resumes within an epoch gets the rows of the steps that it has not taken."""

import logging
import re

import pytest

from tensorflowonspark.feed_messages import Layout
from tensorflowonspark.node.checkpoint.position import ResumePosition
from tensorflowonspark.node.checkpoint.store import SavedCheckpoint
from tensorflowonspark.node.feed.taken import StepSpan, TakenRows


class Feeds:
    """The feeds of a node, of which the second one is current."""

    current, first, arriving = 1, 0, None

    def __init__(self, fingerprint, place=None):
        self.fingerprint = fingerprint
        self.begun_at = None
        self._place = place

    def taken(self, step, batch):
        return TakenRows(step // 10, (), self.fingerprint)

    def resume_from(self, taken):
        return self._place

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
        ({"feed": 2, "workers": 2, "rows": 77}, None, ""),  # nothing of this feed is left
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


@pytest.mark.parametrize(
    ("rows", "place", "begin", "why"),
    [
        (77, (3, 12), (3, 12), ""),  # whatever the number of workers
        (77, (4, 0), (4, 0), "step-1 has all steps of epoch 4, and not what follows at its end: epoch 5 begins"),
        (77, None, (3, 0), "step-1 does not say which of the rows are left: epoch 4 begins again"),
        (78, (3, 12), (3, 0), "step-1 was written with other rows, .*: epoch 4 begins again"),
    ],
)
def test_other_workers_go_on_where_a_checkpoint_says_which_rows_were_taken(tmp_path, caplog, rows, place, begin, why):
    saved = SavedCheckpoint("step-1", 0, 100, 3, {}, batch=10, feed=1, workers=3, rows=rows)
    ResumePosition(Feeds(rows), link=None, workers=3).write(str(tmp_path), 100, 3, 10)
    feeds = Feeds(77, place)
    position = ResumePosition(feeds, link=None, workers=2)
    position.read(str(tmp_path), saved)
    assert position.resume(saved) == begin
    assert re.search(why, caplog.text)
    assert bool(caplog.text) is bool(why)
    caplog.clear()
    taken = feeds.taken_before(100)  # what a loop of the user's gets
    assert taken == (TakenRows(10, (), 77) if rows == 77 else None)
    assert bool(caplog.text) is (rows != 77)
    assert feeds.taken_before(99) is None


def test_rows_that_were_made_of_others_say_so(tmp_path, caplog):
    spans = (StepSpan(Layout(), (3,), 1, 4, 0, 0, made="pack={'tokens': 16}"),)
    (tmp_path / "rows.json").write_text(TakenRows(3, spans, 77).text)
    position = ResumePosition(Feeds(77), link=None, workers=2)
    saved = SavedCheckpoint("step-1", 0, 100, 3, {}, batch=10, feed=1, workers=2, rows=77)
    position.read(str(tmp_path), saved)
    assert position.resume(saved) == (3, 0)
    why = "step-1 was written with pack={'tokens': 16} of rows that the workers do not have now: epoch 4 begins again"
    assert why in caplog.text


def test_a_program_that_counts_epochs_records_no_rows_after_them(tmp_path):
    ResumePosition(Feeds(77), link=None, workers=2).write(str(tmp_path), 100, 3, 0)
    assert not list(tmp_path.iterdir())
