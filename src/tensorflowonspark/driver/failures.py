"""Root cause analysis: which failure came first, and which node is at fault when nothing moves."""

import logging
from collections.abc import Callable, Sequence

from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.errors import FailureKind, NodeError
from tensorflowonspark.messages import Failed, Idle, NodeStatus, Probe, WaitsFor
from tensorflowonspark.terminal import CONSOLE

__all__ = ["BROKEN", "Failures", "find_hung", "silent", "unanswered"]

_log = logging.getLogger(__name__)
_CAUSE_SECONDS = 1.0  # that a failure which looks like a consequence of another one waits for its cause
_PROBE_SECONDS = 1.5  # more, for supervisors to answer a probe
# After failed attempts TensorFlow waits up to 2**14 ms, with Python's lock, until it tries again to register with its
# coordinator (CoordinationServiceAgent::Connect). A peer that comes up meanwhile waits for that without any activity.
_REGISTRATION_SECONDS = 17.0


class Failures:
    """The failures of one cluster's nodes; all methods are called under the lock of their states.

    Parameters
    ----------
    roster : Roster
        The nodes.
    conclude : callable
        Called when the root cause is certain.
    later : callable
        Takes seconds, and a function to call after these.
    """

    def __init__(
        self, roster: Roster, conclude: Callable[[], None], later: Callable[[float, Callable[[], None]], None]
    ) -> None:
        self._roster = roster
        self._conclude = conclude
        self._later = later
        self._failures: list[tuple[Node, Failed]] = []
        self._losses: list[tuple[Node, Failed]] = []  # of nodes that the others can do without
        self._probe = 0  # the number of the last one

    @property
    def begun(self) -> bool:
        """Whether a node has failed that the others need."""
        return bool(self._failures)

    def note(self, node: Node, failure: Failed) -> None:
        """Note the failure of a node that the others need."""
        last = bool(self._losses) and node.serving
        self._failures.append(self._losses[0] if last else (node, failure))
        if failure.kind is not FailureKind.PEER_LOST:
            self._conclude()
        elif len(self._failures) == 1:
            probe = self.probe()
            self._later(_CAUSE_SECONDS, lambda: self._conclude_if_answered(probe))

    def lose(self, node: Node, failure: Failed) -> None:
        """Note the failure of a node that the others can do without."""
        self._roster.lose(node)
        self._losses.append((node, failure))
        held = f"; with it went {node.holds}" if node.holds else ""
        text = "%s on %s failed: %s. The others train on%s"
        CONSOLE.log(_log, logging.WARNING, text, node.role, node.host, failure.reason, held)

    @property
    def last_probe(self) -> int:
        """The number of the last probe, which a supervisor that registers after it need not answer."""
        return self._probe

    def probe(self) -> int:
        """Send all supervisors a probe; return its number."""
        self._probe += 1
        self._roster.send_all(Probe(self._probe))
        return self._probe

    def unanswered(self, probe: int) -> list[Node]:
        """Return the nodes whose supervisors have not answered a probe."""
        return [node for node in self._roster.nodes if node.channel is not None and node.checked < probe]

    def first(self) -> NodeError:
        """Return the failure that is most likely the root cause."""
        node, failed = min(self._failures, key=lambda each: each[1].kind.value)
        details = failed.reason, failed.advice, failed.traceback, failed.output, failed.kind.name.lower()
        return NodeError(str(node.role), node.host, *details, failed.exit_code)

    def _conclude_if_answered(self, probe: int) -> None:
        """Conclude if all supervisors have answered that their nodes are up; else give the others more time."""
        if self.unanswered(probe):
            self._later(_PROBE_SECONDS, lambda: self._fail_unanswered(probe))
        else:
            self._conclude()

    def _fail_unanswered(self, probe: int) -> None:
        for node in self.unanswered(probe):
            self._failures.append((node, unanswered(self._failures[0][0])))
        self._conclude()


_LOST_ADVICE = (
    "see the executor's log in Spark's UI; killed for memory by YARN or Kubernetes: raise spark.executor.memoryOverhead"
)
BROKEN = Failed(
    FailureKind.LOST,
    "the connection to its supervisor broke: the process, its container or its host is gone",
    _LOST_ADVICE,
)


def silent(seconds: float) -> Failed:
    """Return the failure of a node whose supervisor sends no heartbeat."""
    reason = f"no heartbeat of its supervisor for {seconds:g} s: its host or the network is gone, or it is stopped"
    return Failed(FailureKind.LOST, reason, _LOST_ADVICE)


def unanswered(peer: Node) -> Failed:
    """Return the failure of a node that a peer's TensorFlow can't reach and whose supervisor does not answer."""
    reason = f"{peer.role} can't reach it, and its supervisor does not answer: its host or the network is gone"
    return Failed(FailureKind.LOST, reason, _LOST_ADVICE)


def find_hung(nodes: Sequence[Node], trainers: Sequence[Node], feed: int | None) -> tuple[Node, Failed] | None:
    """Return the node that hangs and its failure, or None.

    A node that trains with others may wait any length of time for one that is busy. So a training hangs only if

    - all its nodes are idle,
    - none waits with a reason: for rows, for a file system, or for a feed that is on its way or has not begun,
    - and one of them has steps to take.

    The node at fault is then one that stands still outside of TensorFlow, which keeps the others waiting. If there is
    none, it is one that does not answer; else the one with the fewest steps. A node that does not answer may be about
    to find a peer that has just come up: it gets the time that TensorFlow takes for that.

    A node that trains with no other hangs if it is idle and does not answer.

    Parameters
    ----------
    nodes : sequence of Node
        All nodes that are idle, or more.
    trainers : sequence of Node
        Those that train together.
    feed : int or None
        The number of the current feed, if there is one.
    """
    frozen = [(node, node.idle) for node in nodes if node.idle and node.idle.where is None and not node.returned]
    if frozen:
        together = {node.number for node in trainers}
        alone = next((each for each in frozen if each[0].number not in together), None)
        if alone is not None:
            return alone[0], _frozen(alone[0])
    there = [(node, node.idle) for node in trainers if node.idle is not None and not node.returned]
    if len(there) + sum(node.returned for node in trainers) < len(trainers):
        return None  # one is busy
    if any(idle.where is None and node.idle_seconds < _REGISTRATION_SECONDS for node, idle in there):
        return None
    if any(_waits_with_reason(node, idle, there, feed) for node, idle in there):
        return None
    here = [(node, idle) for node, idle in there if idle.where is None or idle.where.waits_for is WaitsFor.NOTHING]
    if not any(idle.where is None or idle.where.in_tensorflow or idle.where.in_epoch for _, idle in here):
        return None
    node, idle = min(here, key=lambda each: (_suspicion(each[1]), _steps(each[0])))
    away = [str(each.role) for each in trainers if each not in [other for other, _ in here]]
    return node, _frozen(node) if idle.where is None else _hung(node, idle.where, away)


def _waits_with_reason(node: Node, idle: Idle, there: Sequence[tuple[Node, Idle]], feed: int | None) -> bool:
    """Whether an idle node waits for an event that does not depend on the other nodes."""
    waits_for = WaitsFor.NOTHING if idle.where is None else idle.where.waits_for
    if waits_for is WaitsFor.ROWS:
        # The steps of a stream are granted to all together: one that neither reads nor answers holds up the others.
        return all(each.where is not None for _, each in there)
    if waits_for is WaitsFor.FEED:
        return node.waits_for_feed and feed in (None, node.feed_wanted)
    return waits_for is WaitsFor.STORAGE


def _suspicion(idle: Idle) -> int:
    """Return the rank of an idle node as the cause: one that waits in TensorFlow waits for others."""
    if idle.where is None:
        return 1
    return 2 if idle.where.in_tensorflow else 0


def _frozen(node: Node) -> Failed:
    """Return the failure of a node that does not answer."""
    reason = (
        f"its process has not answered for {node.idle_seconds:.0f} s and used no processor time (heartbeat_timeout)"
    )
    advice = "native code may wait for ever and hold Python's lock; to give it more time, raise heartbeat_timeout"
    return Failed(FailureKind.HUNG, reason, advice)


def _hung(node: Node, where: NodeStatus, away: Sequence[str]) -> Failed:
    """Return the failure of a node that answers and hangs; the nodes that are `away` are done with their steps."""
    at = "waits in TensorFlow" if where.in_tensorflow else "stands still"
    reason = f"its program {at}: it has used no processor time for {node.idle_seconds:.0f} s (heartbeat_timeout)"
    if not where.in_tensorflow:
        advice = "the last line of the traceback is where it is; if it may take that long, raise heartbeat_timeout"
    elif away:
        reason += f", and {', '.join(away)} has no more steps to take with it"
        advice = "all workers must take the same number of steps, and leave a loop at the same one"
    else:
        advice = "the network between the workers may drop packets, or an operation waits for ever"
    return Failed(FailureKind.HUNG, reason, advice, traceback=where.stack)


def _steps(node: Node) -> tuple[int, int]:
    return (node.progress.epoch, node.progress.step) if node.progress else (0, 0)
