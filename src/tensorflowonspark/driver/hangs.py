"""Hangs: which node is at fault when nothing moves, and which hosts do not answer when all nodes have ended."""

import time
from collections.abc import Sequence
from contextlib import suppress

from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Failed, Idle, NodeStatus, Stop, WaitsFor
from tensorflowonspark.transport import ConnectionLost

# After failed attempts TensorFlow waits up to 2**14 ms, with Python's lock, until it tries again to register with its
# coordinator (CoordinationServiceAgent::Connect). A peer that comes up meanwhile waits for that without any activity.
_REGISTRATION_SECONDS = 17.0
_ANSWER_SECONDS, _CHECK_SECONDS = 1.0, 0.02  # for a host to acknowledge a message: its kernel does so at once


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

    Of `nodes`, all that are idle, `trainers` are those that train together.
    """
    frozen = [(node, idle) for node, idle in _idle(nodes) if idle.where is None]
    if frozen:
        together = {node.number for node in trainers}
        alone = next((each for each in frozen if each[0].number not in together), None)
        if alone is not None:
            return alone[0], _frozen(alone[0])
    there = _idle(trainers)
    if len(there) + sum(node.program.returned for node in trainers) < len(trainers):
        return None  # one is busy
    if any(idle.where is None and node.process.idle_seconds < _REGISTRATION_SECONDS for node, idle in there):
        return None
    if any(_waits_with_reason(node, idle, there, feed) for node, idle in there):
        return None
    here = [(node, idle) for node, idle in there if idle.where is None or idle.where.waits_for is WaitsFor.NOTHING]
    if not any(idle.where is None or idle.where.in_tensorflow or idle.where.in_epoch for _, idle in here):
        return None
    node, idle = min(here, key=lambda each: (_suspicion(each[1]), _steps(each[0])))
    away = [str(each.role) for each in trainers if each not in [other for other, _ in here]]
    return node, _frozen(node) if idle.where is None else _hung(node, idle.where, away)


def _idle(nodes: Sequence[Node]) -> list[tuple[Node, Idle]]:
    """Return the nodes that are idle though their programs have not returned."""
    found = [(node, node.process.idle) for node in nodes if not node.program.returned]
    return [(node, idle) for node, idle in found if idle is not None]


def _waits_with_reason(node: Node, idle: Idle, there: Sequence[tuple[Node, Idle]], feed: int | None) -> bool:
    """Whether an idle node waits for an event that does not depend on the other nodes."""
    waits_for = WaitsFor.NOTHING if idle.where is None else idle.where.waits_for
    if waits_for is WaitsFor.ROWS:
        # The steps of a stream are granted to all together: one that neither reads nor answers holds up the others.
        return all(each.where is not None for _, each in there)
    if waits_for is WaitsFor.FEED:
        return node.feed.waits and feed in (None, node.feed.wanted)
    return waits_for in (WaitsFor.STORAGE, WaitsFor.TERMINAL)


def _suspicion(idle: Idle) -> int:
    """Return the rank of an idle node as the cause: one that waits in TensorFlow waits for others."""
    if idle.where is None:
        return 1
    return 2 if idle.where.in_tensorflow else 0


def _frozen(node: Node) -> Failed:
    """Return the failure of a node that does not answer."""
    seconds = node.process.idle_seconds
    reason = f"its process has not answered for {seconds:.0f} s and used no processor time (heartbeat_timeout)"
    advice = "native code may wait for ever and hold Python's lock; to give it more time, raise heartbeat_timeout"
    return Failed(FailureKind.HUNG, reason, advice)


def _hung(node: Node, where: NodeStatus, away: Sequence[str]) -> Failed:
    """Return the failure of a node that answers and hangs; the nodes that are `away` are done with their steps."""
    at = "waits in TensorFlow" if where.in_tensorflow else "stands still"
    seconds = node.process.idle_seconds
    reason = f"its program {at}: it has used no processor time for {seconds:.0f} s (heartbeat_timeout)"
    if not where.in_tensorflow:
        advice = "the last line of the traceback is where it is; if it may take that long, raise heartbeat_timeout"
    elif away:
        reason += f", and {', '.join(away)} has no more steps to take with it"
        advice = "all workers must take the same number of steps, and leave a loop at the same one"
    else:
        advice = "the network between the workers may drop packets, or an operation waits for ever"
    return Failed(FailureKind.HUNG, reason, advice, traceback=where.stack)


def _steps(node: Node) -> tuple[int, int]:
    progress = node.program.progress
    return (progress.epoch, progress.step) if progress else (0, 0)


def find_vanished(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes whose hosts do not answer, after a failure has ended all."""
    channels = [(node, node.process.last_channel) for node in nodes if node.process.last_channel is not None]
    for _, channel in channels:
        with suppress(ConnectionLost):
            channel.send(Stop(grace_seconds=0.0))
    end = time.monotonic() + _ANSWER_SECONDS
    while silent := [node for node, channel in channels if channel.is_unanswered]:
        if time.monotonic() > end:
            break
        time.sleep(_CHECK_SECONDS)
    return silent
