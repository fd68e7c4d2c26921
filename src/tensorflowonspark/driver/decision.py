"""What happens when a node fails: `decide` alone decides it, from what is known, and does nothing itself.

The monitor asks about each failure while the other nodes run. When the attempt has ended, the restart controller asks
about its root cause.
"""

from dataclasses import dataclass, field, replace

from tensorflowonspark.errors import ClusterError, FailureKind, NodeError, SlotsError, StartError
from tensorflowonspark.restart_policy import RestartPolicy

_GROWN = FailureKind.GROWN.name.lower()
_NO_START, _NO_SLOTS = "no_start", "no_slots"
OF_EXECUTORS = (FailureKind.EXECUTOR_LOST, FailureKind.LOST)
_CAUSES_OF_EXECUTORS = tuple(kind.name.lower() for kind in OF_EXECUTORS)
_OF_PROGRAMS = (FailureKind.RAISED.name.lower(), FailureKind.PEER_LOST.name.lower())  # all programs fail likewise


@dataclass(frozen=True)
class Failure:
    """The failure of a node, or of an attempt."""

    cause: str  # that of a `NodeError`, or that not all nodes came up, or that there were too few slots
    # Its executor was decommissioned or taken; None: not known yet, and the restart decided on as soon as it is.
    preempted: bool | None = False

    @classmethod
    def of(cls, error: ClusterError, *, preempted: bool = False) -> "Failure":
        """Return the failure with which an attempt has ended."""
        if isinstance(error, NodeError):
            return cls(error.cause, preempted)
        if isinstance(error, StartError) and error.executor_lost:
            return cls(FailureKind.EXECUTOR_LOST.name.lower())
        return cls(_NO_SLOTS if isinstance(error, SlotsError) else _NO_START)


@dataclass(frozen=True)
class Used:
    """How often a node, or all, were started again."""

    restarts: int = 0  # these count as `RestartPolicy.max_restarts`
    preemptions: int = 0  # and these as `RestartPolicy.max_preemptions`
    growths: int = 0  # for more workers, each time

    def add(self, decision: "Replace | Restart") -> "Used":
        """Return the numbers with a further restart."""
        if isinstance(decision, Restart) and decision.growth:
            return replace(self, growths=self.growths + 1)
        if decision.preemption:
            return replace(self, preemptions=self.preemptions + 1)
        return replace(self, restarts=self.restarts + 1)

    def describe(self, who: str, decision: "Replace | Restart", policy: RestartPolicy, more: str = "") -> str:
        """Return that someone is started again, as was decided, and the number of this restart, for messages.

        Examples
        --------
        >>> Used(1).describe("It is", Replace(2.0), RestartPolicy(3), ", while the others continue")
        'It is started again in 2 s, while the others continue (restart 1 of 3)'
        """
        delay = f" in {decision.delay:g} s" if decision.delay else ""
        number = f"restart {self.restarts} of {policy.max_restarts}"
        if decision.preemption:
            number = f"preemption {self.preemptions} of {policy.most_preemptions}"
        elif isinstance(decision, Restart) and decision.growth:
            number = f"growth {self.growths}"
        return f"{who} started again{delay}{more} ({number})"


@dataclass(frozen=True)
class Running:
    """What is known when a node fails while the others run."""

    policy: RestartPolicy
    used: Used = Used()  # restarts of this node alone
    complete: bool = True  # all nodes have registered; from then on one can be started again alone
    placeable: bool = True  # not if its placing has just failed
    serves: bool | None = None  # with parameter servers: it is a worker that serves, or did before it was started again
    fed: int = 2  # nodes, this one included
    # The other workers in rounds of local SGD with it, and how many there must be.
    rounds: tuple[int, int] | None = None
    chief: bool = False
    returned: bool = False
    answering: bool = False
    replaceable: bool = False  # others answer inference as it does, and all programs have returned


@dataclass(frozen=True)
class Ended:
    """What is known when an attempt has ended with an error."""

    policy: RestartPolicy
    used: Used = Used()  # restarts of all nodes
    alone: bool = False  # any node would have been started again alone, as often as the policy allows
    rows_again: bool = True  # the rows that the programs need come again: those of a stream do not


@dataclass(frozen=True)
class Keep:
    """Go on: the node's program has returned, and its result is kept."""


@dataclass(frozen=True)
class Replace:
    """Start the node again alone, while the others continue."""

    delay: float  # seconds to wait before
    preemption: bool = False  # it counts as a restart after a preemption


@dataclass(frozen=True)
class Lose:
    """Go on without the node."""

    # Why it is not started again, for messages; empty unless it was before.
    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class EndAttempt:
    """End the attempt; its root cause is decided on when that is certain."""

    note: str = field(default="", compare=False)  # as of `Lose`


@dataclass(frozen=True)
class Restart:
    """Start all nodes again."""

    delay: float  # as of `Replace`
    preemption: bool = False
    growth: bool = False  # it counts as neither


@dataclass(frozen=True)
class Raise:
    """Raise the error: it ends the cluster."""


def may_be_preemption(cause: str, policy: RestartPolicy) -> bool:
    """Return whether it matters that an executor may have been preempted: what has ended with it, for a policy."""
    return cause in _CAUSES_OF_EXECUTORS and cause in policy.causes and policy.most_preemptions > 0


def awaits_executors(policy: RestartPolicy) -> bool:
    """Return whether it matters that an exception may follow from the end of its executor: only that is restarted."""
    lost, raised = FailureKind.EXECUTOR_LOST.name.lower(), FailureKind.RAISED.name.lower()
    return lost in policy.causes and raised not in policy.causes and policy.max_restarts + policy.most_preemptions > 0


Decision = Keep | Replace | Lose | EndAttempt | Restart | Raise


def decide(state: Running | Ended, failure: Failure) -> Decision:
    """Return what happens after a failure."""
    return _while_running(state, failure) if isinstance(state, Running) else _at_end(state, failure)


def _while_running(state: Running, failure: Failure) -> Keep | Replace | Lose | EndAttempt:
    policy, note = state.policy, ""
    if policy.scope == "node" and state.complete and state.placeable and state.serves is not False:
        if state.returned and not state.answering:
            return Keep()
        if failure.cause in policy.causes and not state.returned:
            found = _delay(policy, state.used, failure)
            if found is not None:
                return Replace(*found)
            if state.used.restarts:
                note = f" (after {state.used.restarts} restarts of this node: max_restarts)"
    return Lose(note) if _can_lose(state, failure) else EndAttempt(note)


def _can_lose(state: Running, failure: Failure) -> bool:
    """Whether the others can do without a node.

    Workers that average their weights in rounds can, as long as enough of them take part, and the chief, which saves
    the weights. Asynchronous workers can as long as one is left; one that holds layers of the chief's model
    (`Context.connect`) takes them with it. When all programs have returned, only the rows of an inference need a node,
    and they can go to another one.
    """
    if state.replaceable:
        return True
    if failure.cause in _OF_PROGRAMS:
        return False
    if state.rounds is not None and not state.chief:
        others, least = state.rounds
        if others >= max(1, least):
            return True
    return bool(state.serves) and state.fed > 1


def _at_end(state: Ended, failure: Failure) -> Restart | Raise:
    policy, used = state.policy, state.used
    # A restart that fails to come up has the same cause. Slots have been waited for as long as the user allows.
    counts = failure.cause in policy.causes or (failure.cause == _NO_START and used != Used())
    allowed = counts and state.rows_again and not state.alone
    if allowed and failure.cause == _GROWN:
        return Restart(0.0, growth=True) if policy.max_restarts or policy.most_preemptions else Raise()
    found = _delay(policy, used, failure) if allowed else None
    return Raise() if found is None else Restart(*found)


def _delay(policy: RestartPolicy, used: Used, failure: Failure) -> tuple[float, bool] | None:
    """Return the seconds before a restart, and whether it counts as a preemption; None if none is left."""
    if failure.preempted is not False and used.preemptions < policy.most_preemptions:
        return 0.0, True  # the cause is gone with the executor
    return (policy.delay(used.restarts), False) if used.restarts < policy.max_restarts else None
