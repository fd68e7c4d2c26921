"""When a cluster whose node has failed is started again: plain data."""

from collections.abc import Collection
from dataclasses import dataclass

from tensorflowonspark.errors import SpecError
from tensorflowonspark.messages import FailureKind

__all__ = ["RestartPolicy"]

_CAUSES = tuple(kind.name.lower() for kind in FailureKind)


@dataclass(frozen=True)
class RestartPolicy:
    """How often a cluster is started again, after which failures, and how soon.

    All nodes are started again, on the executors that there are then, and the function runs from its beginning: it
    goes on from its last checkpoint (`Context.checkpoint`), and learns the number of its attempt (`Context.attempt`).

    Parameters
    ----------
    max_restarts : int
        How often, over the cluster's whole life.
    backoff : float
        Seconds before the second restart; they double with each one after it. The first one comes at once.
    max_backoff : float
        Seconds that are never exceeded.
    causes : collection of str
        The failures that count, by the `NodeError`'s ``cause``; others end the cluster. By default all but
        ``"raised"``: a program's own exception would most likely come again.

    Raises
    ------
    SpecError
        If a number is negative, or there is no such cause.

    Examples
    --------
    >>> policy = RestartPolicy(max_restarts=5, backoff=2, max_backoff=5)
    >>> [policy.delay(restart) for restart in range(5)]
    [0.0, 2.0, 4.0, 5.0, 5.0]
    """

    max_restarts: int = 3
    backoff: float = 1.0
    max_backoff: float = 60.0
    causes: Collection[str] = tuple(cause for cause in _CAUSES if cause != "raised")

    def __post_init__(self) -> None:
        if not isinstance(self.max_restarts, int) or isinstance(self.max_restarts, bool):
            raise SpecError(f"max_restarts={self.max_restarts!r}: expected a whole number")
        for name in ("max_restarts", "backoff", "max_backoff"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name}={getattr(self, name)!r}: expected 0 or more")
        unknown = [self.causes] if isinstance(self.causes, str) else sorted(set(self.causes) - set(_CAUSES))
        if unknown:
            raise SpecError(f"causes: there is no {unknown[0]!r}; there are {', '.join(_CAUSES)}")

    def delay(self, restart: int) -> float:
        """Return the seconds to wait before restart number `restart`, from 0."""
        return float(min(self.max_backoff, self.backoff * 2 ** (restart - 1))) if restart else 0.0
