"""What happens when a node fails: `decide` alone decides it, from what is known, and does nothing itself.

The monitor asks about each failure while the other nodes run. When the attempt has ended, the restart controller asks
about its root cause.
"""

from dataclasses import dataclass, field

from tensorflowonspark.config import RestartPolicy
from tensorflowonspark.errors import ClusterError, FailureKind, NodeError, SlotsError

__all__ = ["EndAttempt", "Ended", "Failure", "Keep", "Lose", "Raise", "Replace", "Restart", "Running", "decide"]

_NO_START, _NO_SLOTS = "no_start", "no_slots"
_OF_PROGRAMS = (FailureKind.RAISED.name.lower(), FailureKind.PEER_LOST.name.lower())  # all programs fail likewise


@dataclass(frozen=True)
class Failure:
    """The failure of a node, or of an attempt.

    Attributes
    ----------
    cause : str
        That of a `NodeError`, or that not all nodes came up, or that there were too few slots.
    """

    cause: str

    @classmethod
    def of(cls, error: ClusterError) -> "Failure":
        """Return the failure with which an attempt has ended."""
        if isinstance(error, NodeError):
            return cls(error.cause)
        return cls(_NO_SLOTS if isinstance(error, SlotsError) else _NO_START)


@dataclass(frozen=True)
class Running:
    """What is known when a node fails while the others run.

    Attributes
    ----------
    policy : RestartPolicy
        The cluster's.
    restarts : int
        How often this node was started again alone.
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
    """

    policy: RestartPolicy
    restarts: int = 0
    complete: bool = True
    placeable: bool = True
    serves: bool | None = None
    fed: int = 2
    rounds: tuple[int, int] | None = None
    chief: bool = False
    returned: bool = False
    answering: bool = False


@dataclass(frozen=True)
class Ended:
    """What is known when an attempt has ended with an error.

    Attributes
    ----------
    policy : RestartPolicy
        The cluster's.
    restarts : int
        How often all nodes were started again.
    alone : bool
        Whether any node would have been started again alone, as often as the policy allows.
    rows_again : bool
        Whether the rows that the programs need come again: those of a stream do not.
    """

    policy: RestartPolicy
    restarts: int = 0
    alone: bool = False
    rows_again: bool = True


@dataclass(frozen=True)
class Keep:
    """Go on: the node's program has returned, and its result is kept."""


@dataclass(frozen=True)
class Replace:
    """Start the node again alone, after some seconds, while the others continue."""

    delay: float


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
    """Start all nodes again, after some seconds."""

    delay: float


@dataclass(frozen=True)
class Raise:
    """Raise the error: it ends the cluster."""


def decide(state: Running | Ended, failure: Failure) -> Keep | Replace | Lose | EndAttempt | Restart | Raise:
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
            if state.restarts < policy.max_restarts:
                return Replace(policy.delay(state.restarts))
            if state.restarts:
                note = f" (after {state.restarts} restarts of this node: max_restarts)"
    return Lose(note) if _can_lose(state, failure) else EndAttempt(note)


def _can_lose(state: Running, failure: Failure) -> bool:
    """Whether the others can do without a node.

    Workers that average their weights in rounds can, as long as enough of them take part, and the chief, which saves
    the weights. Asynchronous workers can as long as one is left; one that holds layers of the chief's model
    (`Context.connect`) takes them with it.
    """
    if failure.cause in _OF_PROGRAMS:
        return False
    if state.rounds is not None and not state.chief:
        others, least = state.rounds
        if others >= max(1, least):
            return True
    return bool(state.serves) and state.fed > 1


def _at_end(state: Ended, failure: Failure) -> Restart | Raise:
    policy = state.policy
    # A restart that fails to come up has the same cause. Slots have been waited for as long as the user allows.
    counts = failure.cause in policy.causes or (failure.cause == _NO_START and state.restarts > 0)
    if state.alone or not state.rows_again or not counts or state.restarts >= policy.max_restarts:
        return Raise()
    return Restart(policy.delay(state.restarts))
