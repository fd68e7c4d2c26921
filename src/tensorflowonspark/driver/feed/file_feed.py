"""Feeds that the workers read from files: when all have read, each gets the row counts of the others.

From then on it is a feed like any other that is kept: even steps, rows that move where shares differ, full shuffles.
"""

from collections.abc import Callable

from tensorflowonspark.driver.feed.job import contents, node_endpoints
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FeedComplete, FilesRead
from tensorflowonspark.messages import Failed, Returned

__all__ = ["FileFeeds"]

_ADVICE = (
    "call ctx.read_tfrecord and ctx.read_parquet on all workers, as often and in the same order, with the same paths"
)


class FileFeeds:
    """The reads that not all workers have come to yet.

    Parameters
    ----------
    tell : callable
        Takes a node's number and what it is told.
    """

    def __init__(self, tell: Callable[[int, object], None]) -> None:
        self._tell = tell
        self._told: dict[int, dict[int, FilesRead]] = {}  # by feed, by node

    def hear(self, node: Node, message: FilesRead | Returned, fed: list[Node]) -> Failed | None:
        """Note what a node has read, or that it reads no more; return why the others wait in vain, if they do."""
        if isinstance(message, FilesRead):
            told = self._told.setdefault(message.feed, {})
            told[node.number] = message
            first = next(iter(told.values()))
            if message.call != first.call:
                return _failure(f"its program called {message.call}, and another worker's {first.call} in its place")
            if message.files != first.files:
                return _failure(f"{message.call} found other files on this worker than on another")
            if all(each.number in told for each in fed):
                self._seal(self._told.pop(message.feed), fed)
        for told in self._told.values():
            for each in fed:
                if each.returned and each.number not in told:
                    waiting = ", ".join(str(other.role) for other in fed if other.number in told)
                    call = next(iter(told.values())).call
                    return _failure(f"the program of {each.role} returned without {call}, for which {waiting} waits")
        return None

    def _seal(self, told: dict[int, FilesRead], fed: list[Node]) -> None:
        parts = [part for each in told.values() for part in each.parts]
        for number, split in contents(parts, node_endpoints(fed)).items():
            self._tell(number, FeedComplete(told[number].feed, split))


def _failure(reason: str) -> Failed:
    return Failed(FailureKind.RAISED, reason, _ADVICE)
