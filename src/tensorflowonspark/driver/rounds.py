"""Rounds of local SGD: which workers take part in each, when it begins, and what becomes of workers that are lost.

The workers exchange their weights without the driver (`node/rounds/`). The driver alone knows who is alive: it begins a
round, begins it again without a worker that is lost, and completes it when every contributor has the mean of all
contributions. Until then no contributor uses the mean, so that all continue with the same weights or none does.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.messages import (
    NOTHING_SHARED,
    Peer,
    Returned,
    RoundBroken,
    RoundExchanged,
    RoundPlan,
    RoundReached,
    RoundRefused,
    RoundResult,
)
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)
_GRACE_SECONDS = 2.0  # for a worker that others miss to be reported as lost, or to report itself
_MOST_BREAKS = 3  # of a round in a row whose workers are all alive

Send = Callable[[int, object], None]
Later = Callable[[float, Callable[[], None]], None]


@dataclass(eq=False)
class _Member:
    """A worker between the beginning and the end of its training."""

    node: Node
    peer: Peer
    report: RoundReached  # the last one
    since: float  # time (time.monotonic) of the report
    version: int  # of the weights that it shares with the others
    waiting: bool = True  # else it computes
    newcomer: bool = False  # it was started again: none of the others trains on for it alone
    late: bool = False  # it has missed a round: no other worker waits for it until it reports again
    settled: bool = False  # its training has ended, and it waits for the end of the others'

    @property
    def ready(self) -> bool:
        """Whether the next round can begin as far as it is concerned."""
        return self.waiting and not self.settled and not self.late


@dataclass
class _Exchange:
    """A round that has begun."""

    number: int
    contributors: list[_Member]
    joining: list[_Member]  # they take the weights of the contributors at its end
    final: bool
    done: set[int] = field(default_factory=set)
    broken: dict[int, RoundBroken] = field(default_factory=dict)


class Rounds:
    """The rounds of one cluster's workers; all methods are called in events of the monitor."""

    def __init__(self, send: Send, workers: Callable[[], Sequence[Node]], later: Later) -> None:
        self._send = send
        self._workers = workers
        self._later = later
        self._members: dict[int, _Member] = {}
        self._exchange: _Exchange | None = None
        self._last_number = NOTHING_SHARED
        self._newest = NOTHING_SHARED  # the version of the newest weights
        self._holders: dict[int, Peer] = {}  # the workers that have these
        self._begun = False  # whether the members share weights
        self._breaks = 0  # in a row
        self._ended = 0  # trainings
        self._trainings: Counter[int] = Counter()  # of which each worker, by number, has seen the end
        self._lost: set[int] = set()  # workers that have not taken part since
        self._deadline = 0.0  # of the latest timer

    # ---- events

    def receive(self, node: Node, message: RoundReached | RoundExchanged | RoundBroken | Returned) -> None:
        """Note what a worker reports."""
        if node.lost:
            return
        if isinstance(message, Returned):
            self._remove(node.number)
        elif isinstance(message, RoundReached):
            self._reach(node, message)
        elif self._exchange is not None and message.number == self._exchange.number:
            self._follow(self._exchange, node, message)
        else:
            member = self._members.get(node.number)
            if member is not None and member.late:  # it answers again, after a round that has begun anew without it
                self._reach(node, member.report)

    def others(self, node: Node) -> tuple[int, int] | None:
        """Return how many others take part in rounds with a worker, and how many must; None if it takes no part."""
        member = self._members.get(node.number)
        return (len(self._members) - 1, member.report.min_workers) if member is not None and self._begun else None

    def node_lost(self, node: Node) -> None:
        """Note that a worker is lost; it may be started again."""
        self._lost.add(node.number)
        self._trainings.pop(node.number, None)
        self._holders.pop(node.number, None)
        self._remove(node.number)

    def _remove(self, number: int) -> None:
        self._members.pop(number, None)
        if not self._members:
            self._begun = False
        exchange = self._exchange
        if exchange is not None:
            exchange.joining = [each for each in exchange.joining if each.node.number != number]
            if any(each.node.number == number for each in exchange.contributors):
                self._breaks = 0
                self._exchange = None
        self._consider()

    def _reach(self, node: Node, message: RoundReached) -> None:
        if not self._begun and self._holders and self._comes_late(node, message):
            self._members.pop(node.number, None)
            self._trainings[node.number] = self._ended
            result = RoundResult(self._newest, tuple(self._holders.values()), averaged=False, final=True)
            self._send(node.number, result)
            return
        peer = Peer(node.number, str(node.role), node.host, message.port, message.identity)
        before = self._members.get(node.number)
        newcomer = before.newcomer if before else node.number in self._lost
        member = _Member(node, peer, message, time.monotonic(), message.version, newcomer=newcomer)
        self._members[node.number] = member
        other = next((each for each in self._members.values() if each.report.signature != message.signature), None)
        if other is not None:
            self._refuse(
                [member],
                f"{node.role} on {node.host} and {other.node.role} on {other.node.host} have different models or "
                "settings of the callback: all workers must build the same model, and give the callback the same "
                "arguments",
            )
            return
        self._consider()

    def _refuse(self, members: Sequence[_Member], reason: str) -> None:
        for member in members:
            self._members.pop(member.node.number, None)
            self._send(member.node.number, RoundRefused(reason))
        if not self._members:
            self._begun = False

    # ---- the beginning of a round

    def _consider(self) -> None:
        """Begin a round if all workers that others wait for have reached it, or the time is over."""
        if self._exchange is not None or not self._members:
            return
        ready = [each for each in self._members.values() if each.ready]
        settled = [each for each in self._members.values() if each.settled]
        away = [each.node for each in self._members.values() if not (each.ready or each.settled or each.late)]
        if not self._begun:  # all workers begin together
            away += [each for each in self._workers() if each.number not in self._members and not each.program.returned]
        if not ready and (away or not settled):
            return
        # Workers at the end of their training have nothing else to do than to wait for those that still train.
        deciding = [each for each in self._members.values() if not each.newcomer] or list(self._members.values())
        at_end = [each for each in deciding if each.waiting and each.report.last and not each.late]
        over = self._begun and bool(at_end) and all(each.late or each in at_end for each in deciding)
        ends = all(each.report.last for each in ready)
        overdue = not ends and self._is_overdue(ready)
        if away and not overdue and not over:
            return
        if ends or over:
            ready += settled
        if not self._are_enough(ready, overdue, away):
            return
        for each in self._members.values():
            each.late = each not in ready and not each.settled
        if away and not over:
            names = ", ".join(f"{each.role} on {each.host}" for each in away)
            CONSOLE.log(_log, logging.WARNING, "a round begins without %s: the time is over (timeout)", names)
        self._begin(sorted(ready, key=lambda each: each.node.number), final=ends or over)

    def _is_overdue(self, ready: Sequence[_Member]) -> bool:
        """Return whether the time of the first worker is over; if it is not, look again when it will be."""
        deadline = min(each.since + each.report.timeout for each in ready)
        rest = deadline - time.monotonic()
        if rest <= 0:
            return True
        if deadline != self._deadline:
            self._deadline = deadline
            self._later(rest, self._look_again)
        return False

    def _look_again(self) -> None:
        self._deadline = 0.0
        self._consider()

    def _are_enough(self, ready: list[_Member], overdue: bool, away: Sequence[Node]) -> bool:
        """Return whether enough workers are there; refuse the round if no others will come."""
        least = max(each.report.min_workers for each in ready)
        if len(ready) >= least:
            return True
        if not overdue and not self._is_overdue(ready):
            return False  # a worker that is started again may come
        absent = [f"{each.role} on {each.host}" for each in away]
        absent += [f"{each.node.role} on {each.node.host}" for each in self._members.values() if each.late]
        names = f" ({', '.join(absent)} did not come)" if absent else ""
        there = ", ".join(f"{each.node.role} on {each.node.host}" for each in ready)
        self._refuse(
            ready,
            f"a round needs {least} workers (min_workers), and within {ready[0].report.timeout:g} s "
            f"(timeout) {len(ready)} reached it: {there}{names}",
        )
        return False

    def _begin(self, members: list[_Member], *, final: bool) -> None:
        self._last_number += 1
        number = self._last_number
        contributors = self._contributors(members)
        own = [each.node.number for each in contributors]
        joining = [each for each in members if each.node.number not in own]
        self._exchange = _Exchange(number, contributors, joining, final)
        if not any(each.report.steps and not each.settled for each in contributors):
            self._complete(self._exchange, averaged=False)
            return
        plan = RoundPlan(number, tuple(each.peer for each in contributors))
        for each in contributors:
            self._send(each.node.number, plan)

    def _contributors(self, members: list[_Member]) -> list[_Member]:
        """Return the workers whose weights count: those with the newest, or the first of those that share none yet."""
        newest = max(each.version for each in members)
        if newest == NOTHING_SHARED:  # all begin, or those that have shared weights are lost
            return members[:1]
        new = [each for each in members if each.version == NOTHING_SHARED]
        if new and not self._begun:  # the weights of others are those of an earlier training
            return new[:1]
        own = [each for each in members if each.version == newest]
        return [each for each in own if not each.settled] or own

    def _comes_late(self, node: Node, message: RoundReached) -> bool:
        """Return whether a worker belongs to a training that the others have ended."""
        return message.version != NOTHING_SHARED or self._trainings[node.number] < self._ended

    # ---- its end

    def _follow(self, exchange: _Exchange, node: Node, message: RoundExchanged | RoundBroken) -> None:
        if isinstance(message, RoundExchanged):
            exchange.done.add(node.number)
            if exchange.done >= {each.node.number for each in exchange.contributors}:
                self._complete(exchange, averaged=True)
            return
        if not exchange.broken:
            self._later(_GRACE_SECONDS, lambda: self._break_off(exchange))
        exchange.broken[node.number] = message
        answered = exchange.done | exchange.broken.keys()
        if answered >= {each.node.number for each in exchange.contributors}:
            self._break_off(exchange)

    def _break_off(self, exchange: _Exchange) -> None:
        """Begin a round again, without the workers that others miss and that do not answer."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        missing = {number for each in exchange.broken.values() for number in each.missing}
        missing -= exchange.done | exchange.broken.keys()
        for number in missing & self._members.keys():
            self._members[number].late = True
        self._breaks = 0 if missing else self._breaks + 1
        if self._breaks >= _MOST_BREAKS:
            number, broken = next(iter(exchange.broken.items()))
            role, host = self._members[number].node.role, self._members[number].node.host
            self._refuse(
                exchange.contributors + exchange.joining,
                f"{role} on {host} can't exchange weights with other workers that are alive: {broken.reason}",
            )
            return
        self._consider()

    def _complete(self, exchange: _Exchange, *, averaged: bool) -> None:
        self._exchange = None
        self._breaks = 0
        self._newest = exchange.number
        self._lost -= {each.node.number for each in exchange.contributors + exchange.joining}
        self._begun = not exchange.final
        self._holders = {each.node.number: each.peer for each in exchange.contributors}
        result = RoundResult(exchange.number, tuple(self._holders.values()), averaged, exchange.final)
        self._ended += exchange.final
        members = exchange.contributors + exchange.joining
        for each in members:
            each.version = exchange.number
            each.settled = each.report.last
            each.waiting = each.settled
            if exchange.final:
                self._members.pop(each.node.number, None)
                self._trainings[each.node.number] = self._ended
        for each in members:
            self._send(each.node.number, result)
        self._consider()
