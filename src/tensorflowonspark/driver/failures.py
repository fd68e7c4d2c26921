"""What failed first: a cause may be told after its consequences, or not at all."""

import logging
from collections.abc import Callable
from threading import Condition, Timer

from tensorflowonspark.console import CONSOLE
from tensorflowonspark.driver.blame import unanswered
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.roster import Roster
from tensorflowonspark.errors import NodeError
from tensorflowonspark.messages import Check, Failed, FailureKind
from tensorflowonspark.spec import Job

__all__ = ["Failures"]

_log = logging.getLogger(__name__)
# How long a failure that looks like another's consequence waits for its cause to be told.
_CAUSE_SECONDS = 1.0
_CHECK_SECONDS = 1.5  # more, for supervisors to answer whether it is their node


class Failures:
    """The failures of one cluster's nodes.

    Parameters
    ----------
    roster : Roster
        The nodes.
    changed : Condition
        Guards what is known of them.
    conclude : callable
        Called when it is certain which failure is the cause of all.
    """

    def __init__(self, roster: Roster, changed: Condition, conclude: Callable[[], None]) -> None:
        self._roster = roster
        self._changed = changed
        self._conclude = conclude
        self._failures: list[tuple[Node, Failed]] = []
        self._losses: list[tuple[Node, Failed]] = []  # that the others can do without
        self._check = 0  # the number of the last one

    @property
    def begun(self) -> bool:
        """Whether a node has failed that the others can't do without."""
        return bool(self._failures)

    def note(self, node: Node, failure: Failed) -> None:
        """Take what was told of a node (under the lock)."""
        if node.lost:
            return
        if self._can_lose(node, failure):
            node.lost = True
            self._losses.append((node, failure))
            held = f"; with it went {node.holds}" if node.holds else ""
            text = "%s on %s failed: %s. The others train on%s"
            CONSOLE.log(_log, logging.WARNING, text, node.role, node.host, failure.reason, held)
            return
        last = bool(self._losses) and node.serving
        self._failures.append(self._losses[0] if last else (node, failure))
        if failure.kind is not FailureKind.PEER_LOST:
            self._conclude()
        elif len(self._failures) == 1:
            check = self.check()
            _later(_CAUSE_SECONDS, lambda: self._conclude_if_checked(check))

    def check(self) -> int:
        """Ask all supervisors to look at their nodes (under the lock); return the question's number."""
        self._check += 1
        self._roster.tell_all(Check(self._check))
        return self._check

    def unchecked(self, check: int) -> list[Node]:
        """Return the nodes whose supervisors have not answered a question."""
        return [node for node in self._roster.nodes if node.channel is not None and node.checked < check]

    def first(self) -> NodeError:
        """Return the one that is most likely the cause."""
        node, failed = min(self._failures, key=lambda each: each[1].kind.value)
        told = failed.reason, failed.advice, failed.traceback, failed.output
        return NodeError(str(node.role), node.host, *told, cause=failed.kind.name.lower())

    def _can_lose(self, node: Node, failure: Failed) -> bool:
        """Whether the others can do without a node: workers of asynchronous training can, as long as one is left."""
        died = failure.kind not in (FailureKind.RAISED, FailureKind.PEER_LOST)
        return died and node.serving and node.role.job is Job.WORKER and len(self._roster.fed()) > 1

    def _conclude_if_checked(self, check: int) -> None:
        """Settle what failed first, once all who might be the cause have said that they are not."""
        if self.unchecked(check):
            _later(_CHECK_SECONDS, lambda: self._blame_unchecked(check))
        else:
            self._conclude()

    def _blame_unchecked(self, check: int) -> None:
        with self._changed:
            for node in self.unchecked(check):
                self._failures.append((node, unanswered(self._failures[0][0])))
        self._conclude()


def _later(seconds: float, act: Callable[[], None]) -> None:
    timer = Timer(seconds, act)
    timer.daemon = True
    timer.start()
