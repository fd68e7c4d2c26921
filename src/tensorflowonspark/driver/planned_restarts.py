"""Planned restarts: all workers save after the same step, and a restart goes on there, with other hosts or slots.

Where nodes are started again alone, the chief does so alone, which writes the checkpoints. The reason is a notice that
a host goes, from Spark, which decommissions an executor, or from the host (`supervisor/host_notices.py`); or that there
are slots for more workers of a cluster whose number is a range.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Thread

from tensorflowonspark.config import Job
from tensorflowonspark.driver.decision import EndAttempt, Failure, Replace, decide
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.recovery import Recovery
from tensorflowonspark.driver.save_agreement import SaveAgreement
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import CheckpointSaved, Failed, HostNotice, Notice, SaveReply
from tensorflowonspark.terminal import CONSOLE, printable

_log = logging.getLogger(__name__)
_CHECK_SECONDS, _SLOTS_SECONDS = 0.5, 1.0


@dataclass(frozen=True)
class _Given:
    """What is known of the end of a host or an executor."""

    reason: str
    until: float | None = None  # of time.monotonic()


class PlannedRestarts:
    """The planned restarts of one cluster; all methods but `follow_...` are called in events of the monitor.

    What ends with a host or an executor that goes was preempted, also if nobody has saved before.
    """

    def __init__(self, monitor: Monitor, recovery: Recovery) -> None:
        self._monitor = monitor
        self._run = monitor.run
        self._roster = monitor.roster
        self._recovery = recovery
        self._of_hosts: dict[str, _Given] = {}
        self._of_executors: dict[str, _Given] = {}
        self._number = 0  # of the last `Notice`
        self._since = 0  # and of the first one since when some host goes
        self._sent: tuple[str, ...] = ()  # the nodes that go, as the last `Notice` has them
        self._more = 0  # the workers for which there are slots
        self._grows_since = 0  # the number of the notice that was sent for them; 0: none
        self._agreement = SaveAgreement(
            self._roster.send,
            monitor.inbox.later,
            lambda: [node.number for node in self._savers() if not node.lost],
        )
        self._has_servers = bool(monitor.roster.spec.num_ps)
        # Each node is started again alone.
        self._alone = monitor.config.restarts.scope == "node" and not self._has_servers
        self._asked = 0  # the number of the chief's restart in which it was last asked to save alone

    def _savers(self) -> list[Node]:
        """Return the nodes that save together: the chief, where it alone takes steps, or is started again alone."""
        return [self._roster.chief] if self._has_servers or self._alone else self._roster.trainers()

    def _is_needed(self, node: Node) -> bool:
        """Whether the training is to be saved before a node goes.

        With parameter servers it goes on without a worker; where nodes are started again alone, the chief has what is
        saved.
        """
        if self._has_servers or self._alone:
            return node is self._roster.chief or node.role.job is Job.PS
        return True

    # ---- who goes

    @property
    def going(self) -> list[Node]:
        """The nodes that go."""
        return [node for node in self._roster.nodes if self._given(node) and not node.lost]

    def hosts_to_leave(self) -> dict[str, str]:
        """Return the hosts that go, of which Spark does not know that, each with the executor of one of its nodes."""
        return {node.host: node.process.executor for node in self.going if node.host in self._of_hosts}

    def _given(self, node: Node) -> _Given | None:
        return self._of_hosts.get(node.host or "") or self._of_executors.get(node.process.executor)

    def follow_spark(self, ask: Callable[[Collection[str]], Mapping[str, str]]) -> None:
        """Ask Spark regularly, in a thread, which executors it decommissions; returns at once.

        `ask` takes executors and returns those, each with the reason.
        """
        Thread(target=self._follow, args=(ask,), daemon=True, name="notices").start()

    def _follow(self, ask: Callable[[Collection[str]], Mapping[str, str]]) -> None:
        while not self._monitor.end.begun:
            time.sleep(_CHECK_SECONDS)  # a wait for an event would wake with every message
            executors = {node.process.executor for node in self._roster.nodes} - {""}
            if found := ask(executors):
                self._monitor.inbox.put(partial(self._take_executors, found))

    def _take_executors(self, found: Mapping[str, str]) -> None:
        new = {executor: _Given(reason) for executor, reason in found.items() if executor not in self._of_executors}
        if new:
            self._of_executors |= new
            self._report()

    def receive(self, node: Node, message: HostNotice) -> None:
        """Note a notice that a node's supervisor has found on its host."""
        host, had = node.host or "", self._of_hosts.get(node.host or "")
        if not message.reason and had is not None:
            del self._of_hosts[host]
            executors = (each.process.executor for each in self._roster.nodes if each.host == host)
            self._monitor.end.reasons.announced.difference_update(executors)
        elif message.reason and (had is None or had.reason != message.reason):
            until = None if message.seconds is None else time.monotonic() + message.seconds
            self._of_hosts[host] = _Given(message.reason, until)
        else:  # another node of the host has reported it
            return
        self._report()

    def _report(self) -> None:
        """Inform all nodes of who goes, and have the workers save."""
        self._monitor.end.reasons.announced.update(filter(None, (node.process.executor for node in self.going)))
        notice, before = self._send(), self._sent
        if notice.nodes == before:  # the text has changed, as one that counts down
            return
        self._sent = notice.nodes
        if not before:
            self._since = self._number
        text = "no host goes any more: the notice was withdrawn"
        if notice.nodes:
            left = "" if notice.seconds is None else f" in {notice.seconds:.0f} s"
            who = f"{', '.join(notice.nodes)} on {', '.join(notice.hosts)}"
            text = f"{who}: the host goes{left} ({printable(notice.reason)})"
        CONSOLE.log(_log, logging.WARNING, "%s", text)
        self._run.metrics.events.note("notice", text, notice.nodes[0] if notice.nodes else "")
        if any(map(self._is_needed, self.going)):
            if self._alone and self._asked != self._roster.chief.restarts:
                self._agreement.abandon()
                self._asked = self._roster.chief.restarts
            self._agreement.begin()

    def _send(self) -> Notice:
        """Send all nodes a new notice of who goes, which may be nobody; return it."""
        going = self.going
        given = [each for each in map(self._given, going) if each is not None]
        untils = [each.until for each in given if each.until is not None]
        self._number += 1
        notice = Notice(
            self._number,
            tuple(str(node.role) for node in going),
            tuple(dict.fromkeys(node.host or "" for node in going)),
            "; ".join(dict.fromkeys(each.reason for each in given)),
            max(0.0, min(untils) - time.monotonic()) if untils else None,
        )
        self._roster.send_all(notice)
        return notice

    def receive_reply(self, node: Node, message: SaveReply) -> None:
        """Note the answer of a worker about the step after which all save."""
        self._agreement.receive(node.number, message)

    # ---- the restart

    def follow_slots(self, more: Callable[[], int], grow_after: float) -> None:
        """Take in, by a restart, the workers for which slots have been free for `grow_after` seconds; return at once.

        `more` returns the workers for which there are slots now; it is called in a thread.
        """
        Thread(target=self._follow_slots, args=(more, grow_after), daemon=True, name="growth").start()

    def _follow_slots(self, more: Callable[[], int], grow_after: float) -> None:
        sent, history = 0, [(time.monotonic(), 0)]  # when so many were free
        while not self._monitor.end.begun:
            time.sleep(min(_SLOTS_SECONDS, grow_after))
            now = time.monotonic()
            history.append((now, more()))
            while len(history) > 1 and history[1][0] <= now - grow_after:
                history.pop(0)
            found = min(number for _, number in history) if history[0][0] <= now - grow_after else 0
            if found or sent:
                sent = found
                self._monitor.inbox.put(partial(self._grow, found))

    def _grow(self, more: int) -> None:
        """Have the workers save, for a restart that takes in so many more; 0: there are no slots for more."""
        self._more = more
        if not more:
            self._grows_since = 0
        elif self._grows_since or self._has_servers or self._alone:
            return
        elif self._run.may_restart(FailureKind.GROWN):
            self._grows_since = self._send().number
            self._agreement.begin()

    def saved(self, message: CheckpointSaved) -> None:
        """End the attempt if this checkpoint was begun for a restart, and one may follow."""
        self._agreement.end()
        going = self.going
        new = [node for node in going if node.host not in self._run.left and self._is_needed(node)]
        leaves = new and message.notice >= self._since and all(node.process.executor for node in going)
        given = self._given(new[0]) if new else None
        why = f"its host goes ({printable(given.reason) if given else ''})"
        if leaves and self._alone:
            self._replace(new[0], why)
        elif leaves and self._run.may_restart(FailureKind.PREEMPTED):  # without an executor the driver's own host goes
            self._end(new[0], FailureKind.PREEMPTED, why)
        elif not going and 0 < self._grows_since <= message.notice and self._run.may_restart(FailureKind.GROWN):
            workers = "another worker" if self._more == 1 else f"{self._more} more workers"
            self._end(self._roster.chief, FailureKind.GROWN, f"there are slots for {workers}")

    def _replace(self, node: Node, why: str) -> None:
        """Start a node again alone, which has saved, if that may follow; else it goes on until its host ends."""
        kind = FailureKind.PREEMPTED
        decision = decide(self._recovery.state_of(node), Failure(kind.name.lower(), preempted=True))
        if isinstance(decision, Replace):
            self._run.left.add(node.host or "")
            self._recovery.carry_out(node, Failed(kind, f"{why}, and it has saved"), decision)

    def _end(self, node: Node, kind: FailureKind, why: str) -> None:
        who = "the chief has" if self._has_servers else "all workers have"
        advice = "with restarts=... the training goes on from there, and no restart is charged"
        self._recovery.carry_out(node, Failed(kind, f"{why}, and {who} saved", advice), EndAttempt())
