"""Collectives of the workers, relayed by the driver.

The first worker gets what the others give, and they get what it makes of it (`node/collectives.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tensorflowonspark.config import Role
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import Contributed, Contribution, Failed, FeedWanted, Returned

__all__ = ["Collectives"]

_ADVICE = (
    "call adapt on all workers, as often and in the same order: each gives its own rows, and gets the state of all"
)


class Collectives:
    """The collectives that not all workers have come to yet.

    Parameters
    ----------
    tell : callable
        Takes a node's number and a message for it.
    """

    def __init__(self, tell: Callable[[int, object], None]) -> None:
        self._tell = tell
        self._pending: dict[int, dict[Role, str]] = {}  # what those who have come called, by collective

    def receive(
        self, node: Node, message: Contribution | FeedWanted | Returned, workers: Sequence[Node]
    ) -> Failed | None:
        """Pass on what a worker gives; return why others wait in vain for one, if they do."""
        if isinstance(message, Contribution):
            if message.piece or message.last:
                self._pass_on(node, message, workers)
                return None
            calls = self._pending.setdefault(message.collective, {})
            calls[node.role] = message.call
            other = next(iter(calls.values()))
            if message.call != other:
                return _failure(f"its program called {message.call}, and another worker's {other} in its place")
            if all(each.role in calls for each in workers):
                del self._pending[message.collective]
        for calls in self._pending.values():
            waiting = [each for each in workers if each.role in calls]
            for each in workers:
                if each.role not in calls and (each.returned or _is_ahead(each, waiting)):
                    did = "returned" if each.returned else "asked for the next feed"
                    return _failure(f"the program of {each.role} {did} without {_awaited(calls)}")
        return None

    def _pass_on(self, node: Node, message: Contribution, workers: Sequence[Node]) -> None:
        first, *others = [each.number for each in workers]
        for number in others if node.number == first else [first]:
            self._tell(number, Contributed(message.collective, node.number, message.piece, message.last))

    def explained(self, node: Node, failure: Failed) -> Failed:
        """Return why a node hangs: if others wait for it in a collective, that is why."""
        for calls in self._pending.values():
            if node.role not in calls:
                return replace(failure, reason=f"{failure.reason}, without {_awaited(calls)}", advice=_ADVICE)
        return failure


def _is_ahead(node: Node, waiting: Sequence[Node]) -> bool:
    """Whether a node is done with the feed in which others wait for it."""
    return any(0 <= each.feed_wanted < node.feed_wanted for each in waiting)


def _awaited(calls: Mapping[Role, str]) -> str:
    return f"{next(iter(calls.values()))}, for which {', '.join(map(str, calls))} waits"


def _failure(reason: str) -> Failed:
    return Failed(FailureKind.RAISED, reason, _ADVICE)
