"""The steps of a stream, by arithmetic alone: every row once, as many steps for all, and never a standstill."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.feed.session import FeedSession
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.sharing.scheduler import StepScheduler
from tensorflowonspark.feed_messages import (
    Backpressure,
    CacheConfig,
    PartId,
    PartsStored,
    PartSummary,
    RowsConsumed,
    Shares,
    Split,
    StreamOpened,
)
from tests.support.scripted import take_steps


def part(partition, number, rows, attempt=1, batch=0):
    return PartSummary(Split.TRAIN, PartId(partition, batch=batch), attempt, number, rows)


def store(plan, stored):
    """Report a part as stored; return whether it counts."""
    plan.receive(stored.number, PartsStored(0, (stored,)))
    return stored in plan.counted


class Workers:
    """Workers that hear a plan's words and count what they take."""

    def __init__(self, plan, batch_size, workers):
        self.plan = plan
        self.shares = [Shares(batch_size, workers, number) for number in range(workers)]
        self.parts = {number: [] for number in range(workers)}
        self.steps = {number: [] for number in range(workers)}
        self.ended = set()
        for number, shares in enumerate(self.shares):
            plan.receive(number, StreamOpened(0, shares))

    def hear(self):
        for number, grant in self.plan.grants().items():
            self.parts[number] += grant.parts
            take_steps(self.steps[number], self.shares[number], grant)
            if grant.end:
                self.ended.add(number)


events = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 60), st.sampled_from(["part", "again", "elsewhere", "press", "pause"])),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 3), st.integers(3, 60), events)
def test_whatever_comes_in_whatever_order(count, batch_size, events):
    plan = StepScheduler(range(count), 0)
    workers = Workers(plan, batch_size, count)
    counted, batch, partition = {}, 0, 0
    for drawn, drawn_rows, what in events:
        number, rows = drawn % count, drawn_rows
        if what == "part":
            assert store(plan, part(partition, number, rows, batch=batch))
            counted[PartId(partition, batch=batch)] = (number, rows)
            partition += 1
        elif what in ("again", "elsewhere") and partition:
            # Spark repeats a task: its rows are there already.
            home, known = counted[PartId(partition - 1, batch=batch)]
            other = home if what == "again" else (home + 1) % count
            assert not store(plan, part(partition - 1, other, known, attempt=2, batch=batch))
        elif what == "press":
            plan.receive(number, Backpressure(0))
        elif what == "pause":
            batch, partition = batch + 1, 0
            plan.pause(batch)
        workers.hear()
    plan.finish()
    workers.hear()
    for number in range(count):
        expected = [(each, rows) for each, (home, rows) in counted.items() if home == number]
        assert workers.parts[number] == [(each, 1) for each, _ in expected]
        assert sum(workers.steps[number]) == sum(rows for _, rows in expected)
    assert len({len(steps) for steps in workers.steps.values()}) == 1
    assert all(any(reals) for reals in zip(*workers.steps.values(), strict=True))  # no step of padding alone
    assert workers.ended == set(range(count))


def test_nothing_is_reported_before_all_programs_read():
    plan = StepScheduler([0, 1], 0)
    plan.receive(0, StreamOpened(0, Shares(10, 2, 0)))
    store(plan, part(0, 0, 10))
    assert plan.grants() == {}
    plan.receive(1, StreamOpened(0, Shares(10, 2, 1)))
    assert plan.grants()[0].parts == ((PartId(0), 1),)


def test_full_steps_are_sent_as_soon_as_all_have_rows():
    plan = StepScheduler([0, 1], 0)
    workers = Workers(plan, 20, 2)
    store(plan, part(0, 0, 35))
    workers.hear()
    assert workers.steps == {0: [], 1: []}
    store(plan, part(1, 1, 25))
    workers.hear()
    assert workers.steps == {0: [10, 10], 1: [10, 10]}


def test_a_full_worker_goes_on_alone_while_the_others_fill_up():
    plan = StepScheduler([0, 1], 0)
    workers = Workers(plan, 20, 2)
    store(plan, part(0, 0, 25))
    store(plan, part(1, 1, 4))
    plan.receive(0, Backpressure(0))
    workers.hear()
    assert workers.steps == {0: [10], 1: [4]}
    workers.hear()
    assert workers.steps == {0: [10], 1: [4]}


def test_shares_that_differ_use_up_equal_rows_in_full_steps():
    plan = StepScheduler([0, 1, 2], 0)
    workers = Workers(plan, 8, 3)
    for rows in (8, 16):
        for number in range(3):
            store(plan, part(rows + number, number, rows))
        workers.hear()
    assert workers.steps == {0: [3, 3, 2] * 3, 1: [3, 2, 3] * 3, 2: [2, 3, 3] * 3}


def test_a_worker_that_is_done_holds_up_nobody():
    plan = StepScheduler([0, 1, 2], 0)
    workers = Workers(plan, 30, 3)
    store(plan, part(0, 0, 20))
    store(plan, part(1, 1, 20))
    workers.hear()
    assert not any(workers.steps.values())
    plan.leave(2)
    workers.hear()
    assert workers.steps == {0: [10, 10], 1: [10, 10], 2: []}
    assert not store(plan, part(2, 2, 5))


def test_workers_that_train_for_themselves_get_parts_and_no_steps():
    plan = StepScheduler([0, 1], 0)
    plan.receive(0, StreamOpened(0, None))
    store(plan, part(0, 0, 20))
    assert [(number, grant.parts, grant.steps) for number, grant in plan.grants().items()] == [
        (0, ((PartId(0), 1),), None)
    ]
    plan.receive(1, Backpressure(0))
    assert plan.grants()[1].flush
    plan.finish()
    assert all(grant.end and grant.flush for grant in plan.grants().values())


def test_a_message_about_rows_taken_looks_at_its_node_alone(monkeypatch):
    """All nodes send one after each batch: a scan of all would take time that grows with the square of their number."""
    spec = ClusterSpec(num_workers=100)
    nodes = [Node(number, role) for number, role in enumerate(spec.roles)]
    looked, granted = [], []

    def is_done(node):
        looked.append(node.number)
        return node.program.returned

    roster = SimpleNamespace(
        nodes=nodes, chief=nodes[0], fed=lambda: nodes, send=lambda number, grant: granted.append(number)
    )
    monitor = SimpleNamespace(roster=roster, lock=nullcontext())
    request = FeedRequest("frame", cache=CacheConfig.parse(None, None))
    feed = FeedSession(SimpleNamespace(monitor=monitor), 0, request)
    monkeypatch.setattr(feed, "is_done", is_done)
    for node in nodes:
        feed.receive(node, StreamOpened(0, Shares(400, 100, node.number)))
    for node in nodes:
        feed.receive(node, PartsStored(0, (part(node.number, node.number, 8),)))
    assert set(granted) == set(range(100))
    looked.clear()
    with monkeypatch.context() as patch:
        patch.setattr(feed._scheduler, "grants", lambda: pytest.fail("no step has become possible"))
        for node in nodes:
            feed.receive(node, RowsConsumed(0, 4))
    assert looked == list(range(100))
    nodes[0].program.returned = True
    feed.note_program(nodes[0])
    assert 0 not in feed._scheduler
