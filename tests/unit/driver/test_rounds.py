"""The driver's part in rounds of local SGD, by the messages of workers that exist only here."""

import pytest

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.rounds import Rounds
from tensorflowonspark.messages import Member, RoundBroken, RoundExchanged, RoundPlan, RoundReached, RoundResult


class Play:
    """A driver's rounds, whose timers go off when a test says so."""

    def __init__(self, workers):
        self.nodes = [Node(number, role) for number, role in enumerate(ClusterSpec(num_workers=workers).roles)]
        for node in self.nodes:
            node.member = Member(node.number, node.role, f"host{node.number}", 1)
        self.sent = []
        self.timers = []
        self.rounds = Rounds(
            lambda number, message: self.sent.append((number, message)),
            lambda: [each for each in self.nodes if not each.lost],
            lambda _seconds, act: self.timers.append(act),
        )

    def reach(self, number, version=-1, steps=1, *, last=False, timeout=100.0, min_workers=1):
        report = RoundReached(7000 + number, version, steps, last, min_workers, timeout, "same")
        self.rounds.receive(self.nodes[number], report)
        return self.take()

    def exchanged(self, number, plan):
        self.rounds.receive(self.nodes[number], RoundExchanged(plan.number))
        return self.take()

    def broken(self, number, plan, *missing):
        self.rounds.receive(self.nodes[number], RoundBroken(plan.number, missing, "why"))
        return self.take()

    def lose(self, number):
        self.nodes[number].lost = True
        self.rounds.node_lost(self.nodes[number])
        return self.take()

    def ring(self):
        timers, self.timers = self.timers, []
        for act in timers:
            act()
        return self.take()

    def take(self):
        sent, self.sent = dict(self.sent), []
        return sent

    def begin(self):
        """Have all workers begin; return the version that they share."""
        for node in self.nodes:
            sent = self.reach(node.number, steps=0)
        return sent[0].number

    def complete(self, plans):
        """Have all contributors report; return the results."""
        for number, plan in plans.items():
            sent = self.exchanged(number, plan)
        return sent


def peers(message):
    return [each.number for each in (message.contributors if isinstance(message, RoundPlan) else message.holders)]


def test_nobody_has_a_round_before_all_contributors_have_the_means():
    play = Play(2)
    version = play.begin()
    play.reach(0, version)
    plans = play.reach(1, version)
    assert [peers(each) for each in plans.values()] == [[0, 1], [0, 1]]
    assert play.exchanged(0, plans[0]) == {}
    results = play.exchanged(1, plans[1])
    assert set(results) == {0, 1}
    assert results[0].averaged
    assert not results[0].final


def test_a_contributor_that_is_lost_after_its_report_takes_part_no_more():
    play = Play(3)
    version = play.begin()
    for number in range(2):
        play.reach(number, version)
    plans = play.reach(2, version)
    play.exchanged(0, plans[0])
    play.exchanged(2, plans[2])
    again = play.lose(2)
    assert [peers(each) for each in again.values()] == [[0, 1], [0, 1]]
    assert play.exchanged(1, plans[1]) == {}  # of the exchange that is over


def test_a_worker_that_others_miss_and_that_does_not_answer_is_left_out():
    play = Play(3)
    version = play.begin()
    for number in range(2):
        play.reach(number, version)
    plans = play.reach(2, version)
    assert play.broken(0, plans[0], 1) == {}
    assert play.broken(2, plans[2], 0, 1) == {}
    again = play.ring()
    assert {number: peers(each) for number, each in again.items()} == {0: [0, 2], 2: [0, 2]}
    play.complete(again)
    # It answers at last: its changes are those of an old version, and it joins the next round.
    play.broken(1, plans[1], 0)
    play.reach(0, again[0].number)
    results = play.complete(play.reach(2, again[0].number))
    assert peers(results[1]) == [0, 2]


def test_a_round_is_not_the_last_one_because_only_a_new_worker_has_reached_it():
    play = Play(2)
    version = play.begin()
    play.lose(1)
    play.nodes[1].lost = False
    results = play.complete(play.reach(0, version, timeout=0.0))
    version = results[0].number
    play.reach(1, steps=0, timeout=0.0)  # the other one computes, and is late
    sent = play.ring()
    assert not any(isinstance(each, RoundResult) and each.final for each in sent.values())


def test_a_round_waits_for_workers_that_compute_until_its_time_is_over():
    play = Play(2)
    version = play.begin()
    assert play.reach(0, version, timeout=0.05) == {}
    with pytest.MonkeyPatch.context() as patch:
        now = __import__("time").monotonic() + 1.0
        patch.setattr("tensorflowonspark.driver.rounds.time.monotonic", lambda: now)
        plans = play.ring()
    assert peers(plans[0]) == [0]


def test_workers_at_the_end_of_their_training_wait_for_the_others_without_a_time_out():
    play = Play(2)
    version = play.begin()
    play.timers.clear()
    assert play.reach(0, version, last=True, timeout=0.0) == {}
    assert play.timers == []
    results = play.complete(play.reach(1, version, last=False))
    assert not results[0].final
    assert play.reach(1, results[0].number, last=True)
    assert play.lose(1)[0].final
