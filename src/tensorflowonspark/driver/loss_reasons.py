"""Why executors have ended: failures of their nodes wait for Spark's reason, which comes some seconds later.

Of a container that is killed as a whole the driver notices only that connections broke, among them those of other
nodes to it. The other nodes end at once; the report of the failure, and a restart, wait for Spark's reason.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Thread

from tensorflowonspark.config import REASON_SECONDS
from tensorflowonspark.driver.decision import OF_EXECUTORS
from tensorflowonspark.driver.inbox import Inbox
from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.driver.spark.lost_executors import LostExecutor
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Failed

WhyLost = Callable[[str, Iterable[str]], list[LostExecutor]]
_MOST_NAMED = 4  # executors that ended at the same time


class LossReasons:
    """Adds Spark's reasons to failures of one cluster's nodes; all methods are called under the lock of their states.

    `why_lost` is called with the executor of a node and those of the others, in a thread of its own.
    """

    def __init__(self, roster: Roster, inbox: Inbox, why_lost: WhyLost) -> None:
        self._roster = roster
        self._inbox = inbox
        self._why_lost = why_lost
        self._waiting: dict[object, Callable[[], None]] = {}
        self.announced: set[str] = set()  # executors of a notice: what ends with them was preempted

    def add(self, failure: Failed, executor: str, then: Callable[[Failed, bool], object]) -> None:
        """Make a call with a failure and whether its executor was preempted, once Spark's reason is known.

        Any failure but one with its executor has none, and the call is made at once; else in an event.
        """
        if failure.kind not in OF_EXECUTORS:
            then(failure, failure.kind is FailureKind.PREEMPTED)
            return
        nodes = [node for node in self._roster.nodes if not node.lost and node.process.executor not in ("", executor)]
        key = object()

        def end(lost: Sequence[LostExecutor] = ()) -> None:
            if self._waiting.pop(key, None) is not None:
                preempted = any(each.preempted for each in lost if each.number == executor)
                then(_explained(failure, executor, lost, nodes), preempted or executor in self.announced)

        def ask() -> None:
            lost = self._why_lost(executor, dict.fromkeys(node.process.executor for node in nodes))
            self._inbox.put(lambda: end(lost))

        self._waiting[key] = end
        self._inbox.later(REASON_SECONDS, end)
        Thread(target=ask, daemon=True).start()

    def end(self) -> None:
        """Make all calls that wait, without reasons: the cluster is about to end."""
        for end in list(self._waiting.values()):
            end()


def _explained(failure: Failed, executor: str, lost: Sequence[LostExecutor], others: Sequence[Node]) -> Failed:
    """Return a failure with why its executor has ended, and those of others at the same time: any may be to blame."""
    own = "".join(f" ({each})" for each in lost if each.number == executor)
    also = []
    for each in lost:
        if each.number != executor:
            of_it = ", ".join(f"{node.role} on {node.host}" for node in others if node.process.executor == each.number)
            also.append(f"{of_it} ({each})")
    more = [f"{len(also) - _MOST_NAMED} more"] if len(also) > _MOST_NAMED else []
    text = f"; at the same time ended the executors of {'; '.join(also[:_MOST_NAMED] + more)}" if also else ""
    advice = "; ".join(filter(None, dict.fromkeys(each.advice for each in lost)))
    return replace(failure, reason=f"{failure.reason}{own}{text}", advice=advice or failure.advice)
