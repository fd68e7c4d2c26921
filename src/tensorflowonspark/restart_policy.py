"""The failures after which a cluster is started again, and how often."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

from tensorflowonspark.declarations import SECONDS, check_fields
from tensorflowonspark.errors import FailureKind, SpecError

__all__ = ["RestartPolicy"]

_PREEMPTIONS = 10  # for each restart after another failure: they are no fault of the program, but may not go on forever
_CAUSES = tuple(kind.name.lower() for kind in FailureKind)


@dataclass(frozen=True)
class RestartPolicy:
    """The failures after which a cluster is restarted, the number of restarts, and the delays before them.

    A restart starts all nodes again, on the executors of that time, and runs the function from its beginning: the
    function resumes from its last checkpoint (`Context.checkpoint`), and `Context.attempt` is its number.

    Parameters
    ----------
    max_restarts : int
        Maximum number of restarts of the cluster; with ``scope="node"``, of each node. Those after preemptions are not
        among them.
    backoff : float
        Seconds before the second restart, doubled for each later one. The first restart is immediate.
    max_backoff : float
        Maximum of the seconds before a restart.
    causes : collection of str
        The failures after which the cluster is restarted, by the ``cause`` of `NodeError`; others end it. By default
        all but ``"raised"``, since a program would most likely raise its own exception again.
    scope : {"cluster", "node"}
        What is started again: all nodes, or only the node that has failed, while the others continue. The latter is
        for programs whose nodes do not take their steps together. `Context.attempt` is then the number of restarts of
        that node, which gets the rows of its share of the current feed again. With parameter servers this concerns
        workers that serve (`Context.join_server`), on their first host and port; any other node's failure restarts
        all. Not over Spark Connect.
    max_preemptions : int, optional
        Maximum number of restarts, without delay, after losses of executors that Spark has decommissioned or the
        cluster manager has taken. Further ones count as `max_restarts`; by default it is ten times that.

    Raises
    ------
    SpecError
        If a number is negative, or a cause or the scope is unknown.

    Examples
    --------
    >>> policy = RestartPolicy(max_restarts=5, backoff=2, max_backoff=5)
    >>> [policy.delay(restart) for restart in range(5)]
    [0.0, 2.0, 4.0, 5.0, 5.0]
    >>> RestartPolicy(scope="worker")
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: scope='worker': expected 'cluster' or 'node'
    """

    max_restarts: int = 3
    backoff: Annotated[float, SECONDS] = 1.0
    max_backoff: Annotated[float, SECONDS] = 60.0
    causes: Collection[str] = tuple(cause for cause in _CAUSES if cause != "raised")
    scope: Literal["cluster", "node"] = "cluster"
    max_preemptions: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_restarts", "max_preemptions"):
            number = getattr(self, name)
            if number is None and name == "max_preemptions":
                continue
            if not isinstance(number, int) or isinstance(number, bool):
                raise SpecError.of(name, number, ": expected a whole number")
        for name in ("max_restarts", "max_preemptions", "backoff", "max_backoff"):
            if (getattr(self, name) or 0) < 0:
                raise SpecError.of(name, getattr(self, name), ": expected 0 or more")
        unknown = [self.causes] if isinstance(self.causes, str) else sorted(set(self.causes) - set(_CAUSES))
        if unknown:
            raise SpecError.of("causes", unknown[0], f" is unknown; expected some of {', '.join(_CAUSES)}")
        check_fields(self)

    @property
    def most_preemptions(self) -> int:
        """The maximum number of restarts after preemptions."""
        return _PREEMPTIONS * self.max_restarts if self.max_preemptions is None else self.max_preemptions

    def delay(self, restart: int) -> float:
        """Return the seconds to wait before restart number `restart`, counted from 0.

        Parameters
        ----------
        restart : int
            The number of the restart.

        Returns
        -------
        float
            In seconds; 0 for the first restart.

        Examples
        --------
        >>> [RestartPolicy(backoff=5.0).delay(restart) for restart in range(4)]
        [0.0, 5.0, 10.0, 20.0]
        """
        return float(min(self.max_backoff, self.backoff * 2 ** (restart - 1))) if restart else 0.0
