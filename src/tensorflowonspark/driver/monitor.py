"""The state of a running cluster: its nodes, its current feed, its end, and waiting for conditions on these.

Every supervisor holds a channel to the driver. One thread receives from all of them, and puts their messages into the
inbox, where they are handled one after the other (`driver/reception.py`). Handlers, and all that they call, run under
the lock with which other threads read the state; these change it by events of their own.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from traceback import format_exception
from typing import Any, TypeVar

from tensorflowonspark.config import CERTAIN_SECONDS, ClusterSpec
from tensorflowonspark.driver.breakpoints import Breakpoints
from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.decision import awaits_executors
from tensorflowonspark.driver.failures import Failures
from tensorflowonspark.driver.inbox import Inbox
from tensorflowonspark.driver.loss_reasons import LossReasons, WhyLost
from tensorflowonspark.driver.members import Membership
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.nodes import Node, NodeState, Roster
from tensorflowonspark.driver.stack_collection import StackCollection
from tensorflowonspark.errors import ClusterError, FailureKind, NodeError, is_planned
from tensorflowonspark.messages import Failed, Stop
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport import Channel

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def _ignore(_node: Node, _message: Any) -> None:
    """Do nothing with a message: there is no feed."""


class Monitor:
    """The state of one cluster; a `Register` for another cluster's id is refused.

    `on_failure` is called once, when the root cause of a failure is certain, and `on_lost` with nodes that were lost
    while they answered inference, both in a thread of their own. `may_restart` says whether a restart of all nodes may
    follow a failure.
    """

    def __init__(  # noqa: PLR0913 - settings that are named at the call
        self,
        spec: ClusterSpec,
        cluster: str,
        console: ConsoleReporter,
        heartbeat_timeout: float,
        on_failure: Callable[[], None] = lambda: None,
        *,
        restarts: RestartPolicy = RestartPolicy(0),  # noqa: B008 - it is immutable
        metrics: MetricsStore | None = None,
        on_lost: Callable[[Sequence[Node]], None] = lambda _: None,
        why_lost: WhyLost = lambda *_: [],
        may_restart: Callable[[FailureKind], bool] = lambda _: False,
    ) -> None:
        self.roster = Roster(spec)
        self.metrics = metrics or MetricsStore()
        self.console = console
        self.policy = restarts
        self.heartbeat_timeout = heartbeat_timeout  # seconds without one after which a node is given up
        self.inbox = Inbox(self._on_error)
        self.lock = self.inbox.lock  # of all state
        self.stacks = StackCollection(self.roster, self.inbox.wait)
        self.breakpoints = Breakpoints(self.roster)
        self.members = Membership(self.roster, cluster, lambda: not (self._stopping or self.failures.begun))
        awaits = awaits_executors(restarts)
        self.failures = Failures(self.roster, self._conclude, self.inbox.later, awaits_executors=awaits)
        self.reasons = LossReasons(self.roster, self.inbox, why_lost)
        self.preempted = False  # the executor of the node whose failure is the root cause was
        self.feed: int | None = None  # the number of the current feed
        self.on_feed_message: Callable[[Node, Any], None] = _ignore  # takes messages of nodes, and their failures
        self.on_lost = on_lost
        self._on_failure = on_failure
        self._may_restart = may_restart
        self._failed = False  # and the root cause is certain
        self._explained = False  # and Spark has had the time to give its reason
        self._stopping = False
        self._cancelled: Exception | None = None

    def start(self) -> None:
        """Begin to handle messages."""
        self.inbox.start()

    def close(self) -> None:
        """Handle no more messages."""
        self.inbox.close()

    # ---- the end

    @property
    def ended(self) -> bool:
        """Whether the driver has sent all nodes a `Stop`."""
        return self._stopping

    @property
    def failed(self) -> bool:
        """Whether the root cause of a failure is certain; Spark's part of it may not be known yet."""
        return self._failed

    def _conclude(self) -> None:
        """End all nodes, now that the root cause is certain."""
        if self._failed or self._stopping:
            return
        self._failed = True
        self._stopping = True
        self.metrics.fail()
        node, failure = self.failures.root()
        self.reasons.add(failure, node.process.executor, partial(self._publish, node))
        # The driver's program is first: the ends of many nodes would keep it from the lock. Cancelling Spark's jobs
        # takes time, and must not hold up the messages.
        Thread(target=self._end_all, daemon=True).start()

    def _publish(self, node: Node, failure: Failed, preempted: bool) -> None:
        """Note the root cause, which from now on whoever waits for the cluster gets."""
        self.failures.settle(node, failure)
        self._explained, self.preempted = True, preempted
        error = self.failures.first()
        if not is_planned(error.cause):
            self.metrics.events.note("failure", str(error).partition("\n")[0], error.node, error.host, error.cause)

    def _end_all(self) -> None:
        _, failure = self.failures.root()
        self.roster.send_all(Stop(grace_seconds=0.0, is_last=not self._may_restart(failure.kind)))
        self._on_failure()
        self.on_lost([node for node in self.roster.nodes if node.program.answering])

    def _cancel(self, error: Exception) -> None:
        if not self._stopping:
            self._cancelled = error
            self._stop(0.0)

    def _stop(self, grace_seconds: float, is_last: bool = False) -> None:
        self.reasons.end()
        if not self._stopping:
            self._stopping = True
            self.roster.send_all(Stop(grace_seconds, is_last))

    def _on_error(self, error: Exception) -> None:
        """End the cluster after an error of the driver's own; whoever waits for the cluster gets it."""
        CONSOLE.log(_log, logging.ERROR, "the driver could not handle an event:\n%s", "".join(format_exception(error)))
        self._cancel(error)
        self._explained = True  # if this was the event that explains a failure, nobody waits for it any more

    def cancel(self, error: Exception) -> None:
        """End all nodes on behalf of another thread; whoever waits for the cluster gets this error."""
        with self.lock:
            self._cancel(error)
        self.wake()

    def stop(self, grace_seconds: float, is_last: bool = True) -> None:
        """End all nodes; none of their later messages is a failure. If it `is_last`, no restart follows."""
        with self.lock:
            self._stop(grace_seconds, is_last)
        self.wake()

    def failure(self) -> NodeError | None:
        """Return the root cause of the cluster's failure, once it is certain; wait for Spark's part of it."""
        self.inbox.wait(lambda: self._explained or not self._failed)
        with self.lock:
            return self._root_cause()

    def _root_cause(self) -> NodeError | None:
        return self.failures.first() if self._failed else None

    def find_cause(self) -> NodeError | None:
        """Send all supervisors a probe; return the root cause of the failure, or None if all nodes are up.

        A Spark task that has lost its node, and the task's job, may know that before the node's supervisor reports it.
        """
        with self.lock:
            probe = 0 if self._stopping else self.failures.probe()

        def certain() -> bool:
            return self._stopping or not (self.failures.begun or self.failures.unanswered(probe))

        # A supervisor that never answers is given up for its missing heartbeats.
        self.inbox.wait(certain, self.heartbeat_timeout + CERTAIN_SECONDS)
        return self.failure()

    # ---- feeds

    def begin_feed(self, number: int, on_message: Callable[[Node, Any], None]) -> None:
        """Pass the messages of all nodes, and their failures, to a feed until it ends."""
        with self.lock:
            self.feed, self.on_feed_message = number, on_message

    def end_feed(self) -> None:
        """End the current feed: the nodes hold none of its rows any more."""
        with self.lock:
            self.feed, self.on_feed_message = None, _ignore
            for node in self.roster.nodes:
                node.feed.holds = ""

    def end_feeds(self) -> None:
        """Send all nodes, and those that are started again, that no further feed comes."""
        with self.lock:
            self.members.end_feeds()

    # ---- waiting, in the driver's other threads

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for a condition; return whether it holds, at the latest when the time is over.

        It raises the `NodeError` as soon as a node has failed, and `ClusterError` if the cluster was shut down
        meanwhile.
        """

        def over() -> bool:
            if not self._failed and until():
                return True
            self._raise_if_ended()
            return False

        return self.inbox.wait(over, seconds)

    def _raise_if_ended(self) -> None:
        if self._stopping and (self._explained or not self._failed):
            raise self._cancelled or self._root_cause() or ClusterError("the cluster has been shut down")

    def check(self) -> None:
        """Raise what `wait` raises, if a node has failed or the cluster was shut down."""
        with self.lock:
            self._raise_if_ended()

    def pause(self, seconds: float) -> None:
        """Wait for some time; raise what `wait` raises."""
        self.wait(lambda: False, seconds)

    def wake(self) -> None:
        """Have waiting threads check their conditions again, after a change elsewhere."""
        self.inbox.put(lambda: None)

    def ask(self, event: Callable[[], _T]) -> _T:
        """Make a call as an event; return what it returns, or raise what `wait` raises."""
        answers: list[_T] = []
        self.inbox.put(lambda: answers.append(event()))
        self.wait(lambda: bool(answers))
        return answers[0]

    def wait_until_ended(self, channel: Channel | None, seconds: float) -> None:
        """Wait until a process that is retired has closed its channel."""
        self.wait(lambda: channel not in self.roster.former, seconds)

    def wait_until_gone(self, seconds: float) -> list[Node]:
        """Wait until every supervisor has closed its channel; return the nodes of those that have not in time."""
        never = NodeState.AWAITED, NodeState.RESTARTING  # or not again

        def gone() -> bool:
            left = len(self.roster.nodes) - self.roster.count(*never, NodeState.GONE)
            if self.roster.former or left > self.roster.count(NodeState.FAILED):
                return False
            # A node whose restart has failed has no supervisor either.
            failed = [node for node in self.roster.nodes if node.state is NodeState.FAILED]
            return left == sum(node.process.channel is None for node in failed)

        self.inbox.wait(gone, seconds)
        with self.lock:
            return [node for node in self.roster.nodes if node.process.channel is not None]
