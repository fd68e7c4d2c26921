"""The end of an attempt: by the failure of a node, by an error of the driver's own, or as the user wants it."""

import logging
from functools import partial
from threading import Thread
from traceback import format_exception
from typing import Protocol

from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.decision import awaits_executors
from tensorflowonspark.driver.failures import Failures
from tensorflowonspark.driver.inbox import Event, Inbox
from tensorflowonspark.driver.loss_reasons import LossReasons, WhyLost
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.errors import ClusterError, FailureKind, NodeError, is_planned
from tensorflowonspark.messages import Failed, Stop
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)


class Run(Protocol):
    """What outlives an attempt: a `ClusterRun`."""

    metrics: MetricsStore
    console: ConsoleReporter
    left: set[str]  # hosts that go, and for which all nodes were started again

    def may_restart(self, kind: FailureKind) -> bool:
        """Return whether a restart of all nodes may follow a failure."""

    def attempt_closed(self) -> None:
        """Note that nothing of the attempt is left."""


class AttemptEnd:
    """Ends all nodes once, and keeps the error that whoever waits for the cluster gets.

    `on_failure` is called once, when the root cause of a failure is certain, in a thread of its own.
    """

    def __init__(
        self, run: Run, policy: RestartPolicy, roster: Roster, inbox: Inbox, on_failure: Event, why: WhyLost
    ) -> None:
        self._run = run
        self._roster = roster
        self._inbox = inbox
        self._on_failure = on_failure
        self.failures = Failures(roster, self._conclude, inbox.later, awaits_executors=awaits_executors(policy))
        self.reasons = LossReasons(roster, inbox, why)
        self.preempted = False  # the executor of the node whose failure is the root cause was
        self.begun = False  # the driver has sent all nodes a `Stop`
        self.failed = False  # the root cause of a failure is certain
        self._explained = False  # and Spark has had the time to give its reason
        self._cancelled: Exception | None = None

    def _conclude(self) -> None:
        """End all nodes, now that the root cause is certain."""
        if self.begun:
            return
        self.failed = self.begun = True
        self._run.metrics.fail()
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
            text = str(error).partition("\n")[0]
            self._run.metrics.events.note("failure", text, error.node, error.host, error.cause)

    def _end_all(self) -> None:
        _, failure = self.failures.root()
        self._roster.send_all(Stop(grace_seconds=0.0, is_last=not self._run.may_restart(failure.kind)))
        self._on_failure()

    def on_error(self, error: Exception) -> None:
        """End the cluster after an error of the driver's own; whoever waits for the cluster gets it."""
        CONSOLE.log(_log, logging.ERROR, "the driver could not handle an event:\n%s", "".join(format_exception(error)))
        self.cancel(error)
        self._explained = True  # if this was the event that explains a failure, nobody waits for it any more

    def cancel(self, error: Exception) -> None:
        """End all nodes, in any thread; whoever waits for the cluster gets this error."""
        with self._inbox.lock:
            if not self.begun:
                self._cancelled = error
                self.stop(0.0, is_last=False)

    def stop(self, grace_seconds: float, is_last: bool = True) -> None:
        """End all nodes, in any thread; none of their later messages is a failure. `is_last`: no restart follows."""
        with self._inbox.lock:
            self.reasons.end()
            if not self.begun:
                self.begun = True
                self._roster.send_all(Stop(grace_seconds, is_last))
        self._inbox.wake()

    def failure(self) -> NodeError | None:
        """Return the root cause of the cluster's failure, once it is certain; wait for Spark's part of it."""
        self._inbox.wait(lambda: self._explained or not self.failed)
        with self._inbox.lock:
            return self._root_cause()

    def _root_cause(self) -> NodeError | None:
        return self.failures.first() if self.failed else None

    def check(self) -> None:
        """Raise what whoever waits for the cluster gets, if a node has failed or the cluster was shut down."""
        with self._inbox.lock:
            if self.begun and (self._explained or not self.failed):
                raise self._cancelled or self._root_cause() or ClusterError("the cluster has been shut down")
