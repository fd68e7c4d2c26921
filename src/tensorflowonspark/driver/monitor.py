"""The state of a running cluster: its nodes, its current feed, its end, and waiting for conditions on these.

Every supervisor holds a channel to the driver. One thread receives from all of them, and puts their messages into the
inbox, where they are handled one after the other (`driver/reception.py`). Handlers, and all that they call, run under
the lock with which other threads read the state; these change it by events of their own.
"""

from collections.abc import Callable
from threading import RLock
from typing import Protocol, TypeVar

from tensorflowonspark.config import CERTAIN_SECONDS, ClusterConfig
from tensorflowonspark.driver.attempt_end import AttemptEnd, Run
from tensorflowonspark.driver.breakpoints import Breakpoints
from tensorflowonspark.driver.inbox import Event, Inbox
from tensorflowonspark.driver.loss_reasons import WhyLost
from tensorflowonspark.driver.members import Membership
from tensorflowonspark.driver.nodes import Node, NodeState, Roster
from tensorflowonspark.driver.stack_collection import StackCollection
from tensorflowonspark.errors import NodeError
from tensorflowonspark.feed_messages import FeedReport

_T = TypeVar("_T")


class CurrentFeed(Protocol):
    """The feed that is under way: a `FeedSession`; its methods are called in events."""

    number: int

    def receive(self, node: Node, message: FeedReport) -> None:
        """Handle a report about it, or about another feed."""

    def note_program(self, node: Node) -> None:
        """Note that the program of a node may be done with it, or train apart."""

    def lose(self, node: Node) -> None:
        """Note that a process of a node is lost, and what it held; the others go on, with or without another one."""


class Monitor:
    """The state of one attempt. `on_failure` and `why_lost` are as of `AttemptEnd` and `LossReasons`."""

    def __init__(
        self, config: ClusterConfig, run: Run, on_failure: Event = lambda: None, why_lost: WhyLost = lambda *_: []
    ) -> None:
        self.config = config
        self.roster = Roster(config.spec)
        self.run = run
        self.inbox = Inbox(self._on_error)
        self.end = AttemptEnd(run, config.restarts, self.roster, self.inbox, on_failure, why_lost)
        self.stacks = StackCollection(self.roster, self.inbox.wait)
        self.breakpoints = Breakpoints(self.roster)
        self.members = Membership(self.roster, lambda: not (self.end.begun or self.end.failures.begun))
        self.feed: CurrentFeed | None = None  # which gets the nodes' reports

    def _on_error(self, error: Exception) -> None:
        self.end.on_error(error)

    @property
    def lock(self) -> RLock:
        """The lock of all state."""
        return self.inbox.lock

    @property
    def restarts_nodes(self) -> bool:
        """Whether nodes that fail from now on are started again alone."""
        return self.config.restarts_nodes and self.members.complete

    # ---- feeds

    @property
    def feed_number(self) -> int | None:
        """The number of the feed that is under way."""
        return None if self.feed is None else self.feed.number

    def end_feed(self) -> None:
        """End the current feed: the nodes hold none of its rows any more."""
        with self.lock:
            self.feed = None
            for node in self.roster.nodes:
                node.feed.holds = ""

    # ---- waiting, in the driver's other threads

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for a condition; return whether it holds, at the latest when the time is over.

        It raises the `NodeError` as soon as a node has failed, and `ClusterError` if the cluster was shut down
        meanwhile.
        """

        def over() -> bool:
            if not self.end.failed and until():
                return True
            self.end.check()
            return False

        return self.inbox.wait(over, seconds)

    def ask(self, event: Callable[[], _T]) -> _T:
        """Make a call as an event; return what it returns, or raise what `wait` raises."""
        answers: list[_T] = []
        self.inbox.put(lambda: answers.append(event()))
        self.wait(lambda: bool(answers))
        return answers[0]

    def find_cause(self) -> NodeError | None:
        """Send all supervisors a probe; return the root cause of the failure, or None if all nodes are up.

        A Spark task that has lost its node, and the task's job, may know that before the node's supervisor reports it.
        """
        with self.lock:
            probe = 0 if self.end.begun else self.end.failures.probe()

        def certain() -> bool:
            return self.end.begun or not (self.end.failures.begun or self.end.failures.unanswered(probe))

        # A supervisor that never answers is given up for its missing heartbeats.
        self.inbox.wait(certain, self.config.heartbeat_timeout + CERTAIN_SECONDS)
        return self.end.failure()

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
