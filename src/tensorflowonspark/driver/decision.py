"""What happens when a node fails: `decide` alone decides it, from what is known, and does nothing itself.

The monitor asks about each failure while the other nodes run. When the attempt has ended, the restart controller asks
about its root cause.
"""

from dataclasses import dataclass, field

from tensorflowonspark.errors import ClusterError, FailureKind, NodeError, SlotsError, StartError
from tensorflowonspark.restart_policy import RestartPolicy

_NO_START, _NO_SLOTS = "no_start", "no_slots"
OF_EXECUTORS = (FailureKind.EXECUTOR_LOST, FailureKind.LOST)
_CAUSES_OF_EXECUTORS = tuple(kind.name.lower() for kind in OF_EXECUTORS)
_OF_PROGRAMS = (FailureKind.RAISED.name.lower(), FailureKind.PEER_LOST.name.lower())  # all programs fail likewise


@dataclass(frozen=True)
class Failure:
    """The failure of a node, or of an attempt.

    Attributes
    ----------
    cause : str
        That of a `NodeError`, or that not all nodes came up, or that there were too few slots.
    preempted : bool or None
        Whether the node's executor was decommissioned by Spark, or taken by the cluster manager. None if that is not
        known yet: a restart is then decided on as soon as it is.
    """

    cause: str
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
    """How often a node, or all, were started again.

    Attributes
    ----------
    restarts, preemptions : int
        The numbers that count as `RestartPolicy.max_restarts`, and as `RestartPolicy.max_preemptions`.
    """

    restarts: int = 0
    preemptions: int = 0

    def add(self, decision: "Replace | Restart") -> "Used":
        """Return the numbers with a further restart."""
        return Used(self.restarts + (not decision.preemption), self.preemptions + decision.preemption)

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
        return f"{who} started again{delay}{more} ({number})"


@dataclass(frozen=True)
class Running:
    """What is known when a node fails while the others run.

    Attributes
    ----------
    policy : RestartPolicy
        The cluster's.
    used : Used
        The restarts of this node alone.
    complete : bool
        Whether all nodes have registered; from then on one can be started again alone.
    placeable : bool
        Whether it can be placed: not if that has just failed.
    serves : bool or None
        With parameter servers, whether it is a worker that serves, or did before it was started again.
    fed : int
        How many nodes are fed, this one included.
    rounds : tuple of int, optional
        How many other workers take part in rounds of local SGD with it, and how many must.
    chief : bool
        Whether it is the chief.
    returned, answering : bool
        Whether its program has returned, and whether it answers inference.
    replaceable : bool
        Whether others answer inference as it does, and no program needs it any more: all have returned.
    """

    policy: RestartPolicy
    used: Used = Used()
    complete: bool = True
    placeable: bool = True
    serves: bool | None = None
    fed: int = 2
    rounds: tuple[int, int] | None = None
    chief: bool = False
    returned: bool = False
    answering: bool = False
    replaceable: bool = False


@dataclass(frozen=True)
class Ended:
    """What is known when an attempt has ended with an error.

    Attributes
    ----------
    policy : RestartPolicy
        The cluster's.
    used : Used
        The restarts of all nodes.
    alone : bool
        Whether any node would have been started again alone, as often as the policy allows.
    rows_again : bool
        Whether the rows that the programs need come again: those of a stream do not.
    """

    policy: RestartPolicy
    used: Used = Used()
    alone: bool = False
    rows_again: bool = True


@dataclass(frozen=True)
class Keep:
    """Go on: the node's program has returned, and its result is kept."""


@dataclass(frozen=True)
class Replace:
    """Start the node again alone, while the others continue.

    Attributes
    ----------
    delay : float
        Seconds to wait before.
    preemption : bool
        Whether it counts as a restart after a preemption.
    """

    delay: float
    preemption: bool = False


@dataclass(frozen=True)
class Lose:
    """Go on without the node.

    Attributes
    ----------
    note : str
        Why it is not started again, for messages; empty unless it was before.
    """

    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class EndAttempt:
    """End the attempt; its root cause is decided on when that is certain.

    Attributes
    ----------
    note : str
        As of `Lose`.
    """

    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class Restart:
    """Start all nodes again.

    Attributes
    ----------
    delay, preemption
        As of `Replace`.
    """

    delay: float
    preemption: bool = False


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
    """Return what happens after a failure.

    Parameters
    ----------
    state : Running or Ended
        What is known: of the node, while the others run; of the attempt, when it has ended.
    failure : Failure
        The failure.
    """
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
    found = _delay(policy, used, failure) if counts and state.rows_again and not state.alone else None
    return Raise() if found is None else Restart(*found)


def _delay(policy: RestartPolicy, used: Used, failure: Failure) -> tuple[float, bool] | None:
    """Return the seconds before a restart, and whether it counts as a preemption; None if none is left."""
    if failure.preempted is not False and used.preemptions < policy.most_preemptions:
        return 0.0, True  # the cause is gone with the executor
    return (policy.delay(used.restarts), False) if used.restarts < policy.max_restarts else None
