"""What all workers do together: collectives, feeds that they read from files, and the ends of passes.

The driver relays what the workers contribute to a collective: the first worker receives the contributions of the
others, and they receive its result (`node/collectives.py`). When all workers have read their files, each receives the
row counts of the others: from then on it is a cached feed like any other. A worker that will never make the call fails
the cluster, since the others wait for it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tensorflowonspark.config import Role
from tensorflowonspark.driver.feed.file_streams import FileStream
from tensorflowonspark.driver.feed.job import node_endpoints
from tensorflowonspark.driver.feed.manifest import build_manifests
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FeedComplete, FeedReport, FilesRead, PassEnded, PassesEnded, Split
from tensorflowonspark.messages import Contributed, Contribution, Failed, FeedWanted, Returned

__all__ = ["Collectives", "FileFeeds", "Passes"]

Send = Callable[[int, object], None]


class _PendingCalls:
    """Calls that some workers have made and others have not.

    Parameters
    ----------
    advice : str
        The remedy, for errors.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._pending: dict[int, dict[Role, str]] = {}  # the calls, by number and by worker

    def enter(self, number: int, node: Node, call: str) -> Failed | None:
        """Note a worker's call; return a failure if another worker has made a different one in its place."""
        calls = self._pending.setdefault(number, {})
        calls[node.role] = call
        other = next(iter(calls.values()))
        if call == other:
            return None
        return self.failure(f"its program called {call}, and another worker's {other} in its place")

    def complete(self, number: int, workers: Sequence[Node]) -> bool:
        """Return whether all workers have made a call, which is then no longer pending."""
        calls = self._pending.get(number, {})
        if not calls or any(each.role not in calls for each in workers):
            return False
        del self._pending[number]
        return True

    def find_absent(self, workers: Sequence[Node]) -> Failed | None:
        """Return a failure if a worker will not make a call for which others wait."""
        for calls in self._pending.values():
            waiting = [each for each in workers if each.role in calls]
            for each in workers:
                if each.role not in calls and (each.returned or _is_ahead(each, waiting)):
                    action = "returned" if each.returned else "asked for the next feed"
                    return self.failure(f"the program of {each.role} {action} without {_awaited(calls)}")
        return None

    def explain(self, node: Node, failure: Failed) -> Failed:
        """Return the failure of a node that hangs, with the call for which others wait, if there is one."""
        for calls in self._pending.values():
            if node.role not in calls:
                return replace(failure, reason=f"{failure.reason}, without {_awaited(calls)}", advice=self._advice)
        return failure

    def failure(self, reason: str) -> Failed:
        return Failed(FailureKind.RAISED, reason, self._advice)


def _is_ahead(node: Node, waiting: Sequence[Node]) -> bool:
    """Whether a node is done with the feed in which others wait for it."""
    return any(0 <= each.feed_wanted < node.feed_wanted for each in waiting)


def _awaited(calls: Mapping[Role, str]) -> str:
    return f"{next(iter(calls.values()))}, for which {', '.join(map(str, calls))} waits"


class Collectives:
    """The collectives of the workers.

    Parameters
    ----------
    send : callable
        Takes a node's number and a message for it.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._calls = _PendingCalls(
            "call adapt (and on JAX fit, evaluate and the checkpoint) on all workers, as often and in the same order: "
            "each gives its own rows, and gets the state of all"
        )

    def receive(
        self, node: Node, message: Contribution | FeedWanted | Returned, workers: Sequence[Node]
    ) -> Failed | None:
        """Relay a worker's contribution; return a failure if others wait in vain for a worker."""
        if isinstance(message, Contribution):
            if message.piece or message.last:
                self._relay(node, message, workers)
                return None
            failure = self._calls.enter(message.collective, node, message.call)
            if failure is not None:
                return failure
            self._calls.complete(message.collective, workers)
        return self._calls.find_absent(workers)

    def _relay(self, node: Node, message: Contribution, workers: Sequence[Node]) -> None:
        first, *others = [each.number for each in workers]
        for number in others if node.number == first else [first]:
            self._send(number, Contributed(message.collective, node.number, message.piece, message.last))

    def explain(self, node: Node, failure: Failed) -> Failed:
        """Return the failure of a node that hangs, with the collective in which others wait, if there is one."""
        return self._calls.explain(node, failure)


class FileFeeds:
    """The feeds that the workers read from files.

    Parameters
    ----------
    send : callable
        Takes a node's number and a message for it.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._reads: dict[int, dict[int, FilesRead]] = {}  # by feed and node
        self._streams: dict[int, FileStream] = {}  # those whose rows are not known before
        self._calls = _PendingCalls(
            "call ctx.read_tfrecord, ctx.read_parquet, ctx.read_delta and ctx.read_iceberg on all workers, as often "
            "and in the same order, with the same arguments; name the version of a table to which others write"
        )

    def receive(self, node: Node, message: FilesRead | FeedWanted | Returned, workers: Sequence[Node]) -> Failed | None:
        """Note what a worker has read; return a failure if others wait in vain for a worker."""
        if isinstance(message, FilesRead):
            reads = self._reads.setdefault(message.feed, {})
            reads[node.number] = message
            failure = self._calls.enter(message.feed, node, message.call)
            if failure is not None:
                return failure
            if message.files != next(iter(reads.values())).files:
                return self._calls.failure(f"{message.call} found other files on this worker than on another")
            if self._calls.complete(message.feed, workers):
                self._complete(message.feed, workers)
        if isinstance(message, Returned):
            for stream in self._streams.values():
                stream.leave(node.number)
        return self._calls.find_absent(workers)

    def report(self, node: Node, message: FeedReport) -> None:
        """Note what a worker reports of a feed whose rows its workers count in the first epoch."""
        if message.feed in self._streams:
            self._streams[message.feed].receive(node.number, message)

    def _complete(self, feed: int, workers: Sequence[Node]) -> None:
        reads = self._reads.pop(feed).values()
        if any(read.streams for read in reads):
            self._streams[feed] = FileStream(feed, [each.number for each in workers], self._send)
        parts = [part for read in reads for part in read.parts]
        counts = tuple(count for read in reads for count in read.counts)
        for number, split in build_manifests(parts, node_endpoints(workers)).items():
            self._send(number, FeedComplete(feed, split, counts=counts))


class Passes:
    """The passes that workers end over rows which the chief of a ``ParameterServerStrategy`` reads.

    Parameters
    ----------
    send : callable
        Takes a node's number and a message for it.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._ended: dict[tuple[int, Split], Counter[int]] = {}  # by feed and split, and node
        self._reported: Counter[tuple[int, Split]] = Counter()

    def count(self, node: Node, message: PassEnded) -> None:
        """Note that a worker has ended a pass."""
        self._ended.setdefault((message.feed, message.split), Counter())[node.number] += 1

    def report(self, workers: Sequence[Node], chief: int) -> None:
        """Report to the chief how many passes all remaining workers have ended."""
        for (feed, split), ended in self._ended.items():
            count = min((ended[each.number] for each in workers), default=0)
            if count > self._reported[feed, split]:
                self._reported[feed, split] = count
                self._send(chief, PassesEnded(feed, split, count))
