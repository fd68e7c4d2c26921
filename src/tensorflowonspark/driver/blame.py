"""Which node is at fault when nothing moves, or when all complain of each other."""

from collections.abc import Sequence

from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.messages import Failed, FailureKind, Idle, WaitsFor

__all__ = ["BROKEN", "find_hung", "silent", "unanswered"]

_LOST_ADVICE = (
    "see the executor's log in Spark's UI; killed for memory by YARN or Kubernetes: raise spark.executor.memoryOverhead"
)
BROKEN = Failed(
    FailureKind.LOST,
    "the connection to its supervisor broke: the process, its container or its host is gone",
    _LOST_ADVICE,
)


def silent(seconds: float) -> Failed:
    """Return the failure of a node whose supervisor has not even said that it lives."""
    reason = f"its supervisor has not been heard for {seconds:g} s: its host or the network is gone, or it is stopped"
    return Failed(FailureKind.LOST, reason, _LOST_ADVICE)


def unanswered(peer: Node) -> Failed:
    """Return the failure of a node that a peer's TensorFlow has lost, and that does not answer either."""
    reason = f"{peer.role} can't reach it, and its supervisor does not answer: its host or the network is gone"
    return Failed(FailureKind.LOST, reason, _LOST_ADVICE)


def find_hung(trainers: Sequence[Node]) -> tuple[Node, Failed] | None:
    """Return who keeps a training from going on, if nothing in it moves any more.

    One node may wait for another that is busy, for any length of time: so nothing hangs until all do nothing, none of
    them waits for rows or a file system, and one has steps to take. Then it is one outside of TensorFlow that keeps the
    others waiting; if there is none, the one with the fewest steps.

    Parameters
    ----------
    trainers : sequence of Node
        The nodes that train.
    """
    there = [(node, node.idle) for node in trainers if node.idle is not None and not node.returned]
    if len(there) + sum(node.returned for node in trainers) < len(trainers):
        return None  # one is busy
    if any(word.where.waits_for in (WaitsFor.ROWS, WaitsFor.STORAGE) for _, word in there):
        return None
    here = [(node, word) for node, word in there if word.where.waits_for is WaitsFor.NOTHING]
    if not any(word.where.in_tensorflow or word.where.in_epoch for _, word in here):
        return None
    node, word = min(here, key=lambda each: (each[1].where.in_tensorflow, _steps(each[0])))
    away = [str(each.role) for each in trainers if each not in [other for other, _ in here]]
    return node, _hung(word, away)


def _hung(word: Idle, away: Sequence[str]) -> Failed:
    """Return the failure of a node that hangs, while others are done with their steps."""
    at = "waits in TensorFlow" if word.where.in_tensorflow else "stands still"
    reason = f"its program {at}: it has used no processor time for {word.seconds:.0f} s (silence_timeout)"
    if not word.where.in_tensorflow:
        advice = "the last line of the traceback is where it is; if it may take that long, raise silence_timeout"
    elif away:
        reason += f", and {', '.join(away)} has no more steps to take with it"
        advice = "all workers must take the same number of steps, and leave a loop at the same one"
    else:
        advice = "the network between the workers may drop packets, or an operation waits for ever"
    return Failed(FailureKind.HUNG, reason, advice, traceback=word.where.stack)


def _steps(node: Node) -> tuple[int, int]:
    return (node.progress.epoch, node.progress.step) if node.progress else (0, 0)
