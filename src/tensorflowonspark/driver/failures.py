"""Root cause analysis: which failure came first."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from tensorflowonspark.config import CAUSE_SECONDS, EXECUTOR_SECONDS, PROBE_SECONDS
from tensorflowonspark.driver.decision import OF_EXECUTORS
from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.errors import FailureKind, NodeError
from tensorflowonspark.messages import Failed, Probe
from tensorflowonspark.terminal import printable
from tensorflowonspark.transport import MTU_ADVICE, ONLY_SMALL

# Nodes wait for each other in TensorFlow, or have lost each other: whether the network lets them is found out first.
_BETWEEN_NODES = (FailureKind.PEER_LOST, FailureKind.HUNG)
_TASK = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)")  # in errors of TensorFlow


class Failures:
    """The failures of one cluster's nodes; all methods are called under the lock of their states.

    With `awaits_executors`, an exception of a program waits for the end of its executor, of which it may be a
    consequence. This is so where a restart follows after that, and none after an exception.
    """

    def __init__(
        self,
        roster: Roster,
        conclude: Callable[[], None],
        later: Callable[[float, Callable[[], None]], None],
        *,
        awaits_executors: bool = False,
    ) -> None:
        self._roster = roster
        self._conclude = conclude
        self._later = later
        self._awaits_executors = awaits_executors
        self._failures: list[tuple[Node, Failed]] = []
        self._losses: list[tuple[Node, Failed]] = []  # of nodes that the others can do without
        self._probe = 0  # the number of the last one

    @property
    def begun(self) -> bool:
        """Whether a node has failed that the others need."""
        return bool(self._failures)

    def note(self, node: Node, failure: Failed) -> None:
        """Note the failure of a node that the others need."""
        last = bool(self._losses) and node.program.serving
        self._failures.append(self._losses[0] if last else (node, failure))
        if failure.kind is FailureKind.RAISED and self._awaits_executors:
            self._later(EXECUTOR_SECONDS, lambda: self._conclude() if self._failures else None)
        elif failure.kind not in _BETWEEN_NODES:
            self._conclude()
        elif len(self._failures) == 1:
            addresses = {node.member.address for node in self._roster.nodes if node.member and not node.lost}
            probe = self.probe(tuple(sorted(addresses)))
            self._later(CAUSE_SECONDS, lambda: self._conclude_if_answered(probe))

    def lose(self, node: Node, failure: Failed) -> None:
        """Note the failure of a node that the others can do without."""
        self._roster.lose(node)
        self._losses.append((node, failure))

    def withdraw(self, node: Node, failure: Failed) -> None:
        """Forget the exception of a node's program that followed from the end of its executor, which is known now."""
        if failure.kind in OF_EXECUTORS:
            self._failures = [each for each in self._failures if each[0] is not node or not _raised(each)]

    @property
    def last_probe(self) -> int:
        """The number of the last probe, which a supervisor that registers after it need not answer."""
        return self._probe

    def probe(self, addresses: tuple[str, ...] = ()) -> int:
        """Send all supervisors a probe, with addresses to which each tries to connect; return its number."""
        self._probe += 1
        self._roster.send_all(Probe(self._probe, addresses))
        return self._probe

    def unanswered(self, probe: int) -> list[Node]:
        """Return the nodes whose supervisors have not answered a probe."""
        connected = (node for node in self._roster.nodes if node.process.channel is not None)
        return [node for node in connected if node.process.checked < probe]

    def root(self) -> tuple[Node, Failed]:
        """Return the failure that is most likely the root cause, and its node."""
        return min(self._failures, key=lambda each: each[1].kind.value)

    def settle(self, node: Node, failure: Failed) -> None:
        """Take the failure of a node for the root cause, now that all is known about it."""
        self._failures = [(node, failure)]

    def first(self) -> NodeError:
        """Return the error of the failure that is most likely the root cause."""
        node, failed = self.root()
        if failed.kind in _BETWEEN_NODES:
            failed = explain_network(node, failed, self._roster.nodes)
        details = failed.reason, failed.advice, failed.traceback, failed.output
        reason, advice, traceback, output = map(printable, details)
        kind = failed.kind.name.lower()
        return NodeError(str(node.role), node.host, reason, advice, traceback, output, kind, failed.exit_code)

    def _conclude_if_answered(self, probe: int) -> None:
        """Conclude if all supervisors have answered that their nodes are up; else give the others more time."""
        if self._awaits_executors and any(map(_raised, self._failures)):
            return  # until it is known whether an executor has ended
        if self.unanswered(probe):
            self._later(PROBE_SECONDS, lambda: self._fail_unanswered(probe))
        else:
            self._conclude()

    def _fail_unanswered(self, probe: int) -> None:
        for node in self.unanswered(probe) if self._failures[0][1].kind is FailureKind.PEER_LOST else ():
            self._failures.append((node, unanswered(self._failures[0][0])))
        self._conclude()


def _raised(failure: tuple[Node, Failed]) -> bool:
    return failure[1].kind is FailureKind.RAISED


_LOST_ADVICE = (
    "see the executor's log in Spark's UI; killed for memory by YARN or Kubernetes: raise spark.executor.memoryOverhead"
)
_SILENT_ADVICE = (
    "see whether the host runs, and whether the driver's host reaches it; if it is only slow, swaps, or its network "
    "breaks for longer than that, raise heartbeat_timeout; with restarts=... the training goes on elsewhere; "
    "`tfos check --master ...` shows whether the network between hosts loses large packets alone"
)
_CLOSED_ADVICE = (
    "a firewall is closed there, or the network between these hosts is broken: nodes connect to each other and to the "
    "driver; `tfos check --master ...` tries it, and network=Network(ports='7000-7100') takes the ports that are open"
)
_BROKEN_ADVICE = (
    "TensorFlow outlives a break of some ten seconds: look for dropped packets between these hosts (`tfos check "
    "--master ...` tries large ones too); with restarts=... the training goes on from its newest checkpoint"
)
_MOST_NAMED = 4  # pairs of nodes
BROKEN = Failed(
    FailureKind.LOST,
    "the connection to its supervisor broke: the process, its container or its host is gone",
    _LOST_ADVICE,
)


def silent(seconds: float) -> Failed:
    """Return the failure of a node whose supervisor sends no heartbeat."""
    reason = f"no heartbeat of its supervisor for {seconds:g} s: its host or the network is gone, or it is stopped"
    return Failed(FailureKind.LOST, reason, _SILENT_ADVICE)


def unanswered(peer: Node) -> Failed:
    """Return the failure of a node that a peer's TensorFlow can't reach and whose supervisor does not answer."""
    reason = f"{peer.role} can't reach it, and its supervisor does not answer: its host or the network is gone"
    return Failed(FailureKind.LOST, reason, _SILENT_ADVICE)


def explain_network(node: Node, failed: Failed, nodes: Sequence[Node]) -> Failed:
    """Return a failure with the nodes that can't reach each other in TensorFlow, if that is why it has failed."""
    closed = [
        f"{'it' if each is node else f'{each.role} on {each.host}'} can't reach {to.role} on {to.host} at port "
        f"{to.member.port} of TensorFlow ({each.process.unreached[to.member.address]})"
        for each in sorted((each for each in nodes if each.process.unreached), key=lambda each: each is not node)
        for to in nodes
        if to.member and to.member.address in each.process.unreached.keys() - to.process.unreached.keys()
    ]
    if closed:
        only_large = all(why == ONLY_SMALL for each in nodes for why in each.process.unreached.values())
        advice = MTU_ADVICE if only_large else _CLOSED_ADVICE
        return replace(failed, reason="; ".join(closed[:_MOST_NAMED]), advice=advice)
    named = {f"{job}:{task}" for job, task in _TASK.findall(f"{failed.reason}\n{failed.traceback}")}
    lost = [f"{each.role} on {each.host}" for each in nodes if each is not node and str(each.role) in named]
    if lost and "UnavailableError" in failed.reason:
        reason = f"its TensorFlow has lost {', '.join(lost)}, which runs: the network between them was broken"
        return replace(failed, reason=reason, advice=_BROKEN_ADVICE)
    return failed
