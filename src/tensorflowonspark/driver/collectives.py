"""What all workers do together: collectives, feeds that they read from files, and the ends of passes.

The driver relays what the workers contribute to a collective: the first worker receives the contributions of the
others, and they receive its result (`node/collectives.py`). When all workers have read their files, each receives the
row counts of the others: from then on it is a cached feed like any other. A worker that will never make the call fails
the cluster, since the others wait for it.

Where a worker is started again alone, the others wait for its new process in the calls that its former one has not
made. The new process makes the earlier calls too, and receives what they have resulted in then.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tensorflowonspark.config import Role
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.sharing.manifest import build_manifests, node_endpoints
from tensorflowonspark.driver.sharing.scheduler import StepScheduler
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import (
    FeedComplete,
    FeedReport,
    FilesRead,
    PassEnded,
    PassesEnded,
    RowsCounted,
    Split,
)
from tensorflowonspark.messages import Contributed, Contribution, Failed, FeedWanted, Returned

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

    def leave(self, node: Node) -> None:
        """Forget the calls of a worker that is started again: it makes them once more."""
        for number in [number for number, calls in self._pending.items() if calls.pop(node.role, None) and not calls]:
            del self._pending[number]

    def find_absent(self, workers: Sequence[Node]) -> Failed | None:
        """Return a failure if a worker will not make a call for which others wait."""
        for calls in self._pending.values():
            waiting = [each for each in workers if each.role in calls]
            for each in workers:
                if each.role not in calls and (each.returned or _is_ahead(each, waiting)):
                    action = "returned" if each.returned else "asked for the next feed"
                    return self.failure(f"the program of {each.role} {action} without {_awaited(calls)}")
        return None

    def find_crossed(self, others: "_PendingCalls", node: Node) -> Failed | None:
        """Return a failure if a node waits here for one that waits in another kind of call, and has not made this."""
        for calls in self._pending.values():
            for other in others._pending.values():
                mine, its = (calls, other) if node.role in calls else (other, calls)
                apart = [role for role in its if role not in mine]
                if node.role in mine and node.role not in its and apart:
                    return self.failure(
                        f"its program called {mine[node.role]}, and another worker's {its[apart[0]]} in its place"
                    )
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
    keeps : bool
        Whether contributions are kept for workers that are started again alone.

    Attributes
    ----------
    calls : _PendingCalls
        Those that some workers have made, and others have not.
    """

    def __init__(self, send: Send, *, keeps: bool = False) -> None:
        self._send = send
        self._keeps = keeps
        self._begun: dict[tuple[int, int], list[bytes]] = {}  # pieces, by collective and sender
        self._kept: dict[tuple[int, int], list[bytes]] = {}  # of whole contributions
        self._delivered: dict[int, set[tuple[int, int]]] = {}  # contributions, by the node that has them
        self._completed: dict[int, str] = {}  # the calls that all workers have made
        self.calls = _PendingCalls(
            "call adapt, fit, ctx.read_parquet and its like, and the checkpoint (on JAX evaluate too) on all workers, "
            "as often and in the same order: each gives its own part, and gets the state of all"
        )

    def receive(
        self, node: Node, message: Contribution | FeedWanted | Returned, workers: Sequence[Node]
    ) -> Failed | None:
        """Relay a worker's contribution; return a failure if others wait in vain for a worker."""
        if isinstance(message, Contribution):
            if message.piece or message.last:
                if self._keeps:
                    self._keep(node, message, workers)
                else:
                    self._relay(node, message, workers)
                return None
            failure = self._enter(node, message, workers)
            if failure is not None:
                return failure
        return self.calls.find_absent(workers)

    def _enter(self, node: Node, message: Contribution, workers: Sequence[Node]) -> Failed | None:
        """Note that a worker has reached a collective; send it what has come before it was started again."""
        number, call = message.collective, message.call
        self._begun.pop((number, node.number), None)
        for sender in _partners(node, workers):
            self._deliver(number, sender.number, node)
        if number in self._completed:
            if call == self._completed[number]:
                return None
            return self.calls.failure(
                f"its program called {call} after its restart, and all workers {self._completed[number]} in its place"
            )
        failure = self.calls.enter(number, node, call)
        if failure is None and self.calls.complete(number, workers) and self._keeps:
            self._completed[number] = call
        return failure

    def _relay(self, node: Node, message: Contribution, workers: Sequence[Node]) -> None:
        for each in _partners(node, workers):
            self._send(each.number, Contributed(message.collective, node.number, message.piece, message.last))

    def _keep(self, node: Node, message: Contribution, workers: Sequence[Node]) -> None:
        """Keep a contribution, and relay it when it is whole: its sender may be lost before that."""
        key = message.collective, node.number
        pieces = self._begun.setdefault(key, [])
        pieces.append(message.piece)
        if not message.last:
            return
        self._kept.setdefault(key, self._begun.pop(key))  # the others may have that of the sender's former process
        for each in _partners(node, workers):
            self._deliver(*key, each)

    def _deliver(self, collective: int, sender: int, receiver: Node) -> None:
        """Send a node a whole contribution, unless its present process has it."""
        key, delivered = (collective, sender), self._delivered.setdefault(receiver.number, set())
        if key not in self._kept or key in delivered or receiver.channel is None:
            return
        delivered.add(key)
        *pieces, last = self._kept[key]
        for piece in pieces:
            self._send(receiver.number, Contributed(*key, piece, last=False))
        self._send(receiver.number, Contributed(*key, last, last=True))

    def node_lost(self, node: Node) -> None:
        """Wait for the calls of a worker's new process."""
        self.calls.leave(node)
        self._delivered.pop(node.number, None)

    def explain(self, node: Node, failure: Failed) -> Failed:
        """Return the failure of a node that hangs, with the collective in which others wait, if there is one."""
        return self.calls.explain(node, failure)


def _partners(node: Node, workers: Sequence[Node]) -> Sequence[Node]:
    """Return the workers to which one sends its contribution, and from which it receives theirs."""
    first, *others = workers
    return others if node.number == first.number else [first]


class FileFeeds:
    """The feeds that the workers read from files.

    If only reading the files shows their rows, the first epoch takes the steps that are granted meanwhile. Each worker
    reads its own share, so every row that it reports counts. It reads ahead as far as its memory allows, whatever the
    others do, so no step needs padding before the worker with fewer rows has taken all of them.

    Parameters
    ----------
    send : callable
        Takes a node's number and a message for it.
    keeps : bool
        Whether what the workers have read is kept for those that are started again alone; then no rows are moved.
    """

    def __init__(self, send: Send, *, keeps: bool = False) -> None:
        self._send = send
        self._keeps = keeps
        self._completed: dict[int, tuple[FilesRead, Callable[[int], None]]] = {}  # by feed; the latter informs a node
        self._reads: dict[int, dict[int, FilesRead]] = {}  # by feed and node
        self._steps: dict[int, StepScheduler] = {}  # of those whose rows only reading them shows
        self._counted: set[int] = set()  # of these, those whose workers know the counts
        self._calls = _PendingCalls(
            "call ctx.read_tfrecord, ctx.read_parquet, ctx.read_delta and ctx.read_iceberg on all workers, as often "
            "and in the same order, with the same arguments; name the version of a table to which others write"
        )

    def find_crossed(self, node: Node, collectives: Collectives) -> Failed | None:
        """Return a failure if a worker reads files while another waits for it in a collective, or vice versa."""
        return self._calls.find_crossed(collectives.calls, node)

    def receive(self, node: Node, message: FilesRead | FeedWanted | Returned, workers: Sequence[Node]) -> Failed | None:
        """Note what a worker has read; return a failure if others wait in vain for a worker."""
        if isinstance(message, FilesRead) and message.feed in self._completed:
            return self._repeat(node, message)
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
            self.lose(node)
        return self._calls.find_absent(workers)

    def lose(self, node: Node) -> None:
        """Note that a worker will read no further rows: no other one waits for them, or for their count."""
        for feed, steps in self._steps.items():
            steps.leave(node.number)
            self._grant(feed, steps)

    def report(self, node: Node, message: FeedReport) -> None:
        """Note what a worker reports of a feed whose rows its workers count in the first epoch."""
        steps = self._steps.get(message.feed)
        if steps is not None and steps.receive(node.number, message):
            self._grant(message.feed, steps)

    def _grant(self, feed: int, steps: StepScheduler) -> None:
        """Send the workers the counts and the steps that have become known."""
        if steps.all_received and not steps.finished:
            steps.finish()
        if steps.all_counted and feed not in self._counted:
            self._counted.add(feed)  # sent before the last steps: the counts are known when a pass ends
            for number in [number for number in steps.totals if number in steps]:
                self._send(number, RowsCounted(feed, dict(steps.totals)))
        for number, grant in steps.grants().items():
            self._send(number, grant)

    def _complete(self, feed: int, workers: Sequence[Node]) -> None:
        reads = self._reads.pop(feed).values()
        if any(read.streams for read in reads):
            self._steps[feed] = StepScheduler([each.number for each in workers], feed)
        parts = [part for read in reads for part in read.parts]
        counts = dict(count for read in reads for count in read.counts)
        listed = next(iter(reads)).files
        manifests = build_manifests(parts, node_endpoints(workers), rebalance=not self._keeps, fingerprint=listed)

        def inform(number: int) -> None:
            self._send(number, FeedComplete(feed, manifests[number]))
            if counts:
                self._send(number, RowsCounted(feed, counts))

        if self._keeps:
            self._completed[feed] = next(iter(reads)), inform
        for number in manifests:
            inform(number)

    def _repeat(self, node: Node, message: FilesRead) -> Failed | None:
        """Complete a feed once more, for a worker that was started again and has read its share again."""
        read, inform = self._completed[message.feed]
        if message.call != read.call:
            return self._calls.failure(
                f"its program called {message.call} after its restart, and all workers {read.call} in its place"
            )
        if message.files != read.files:
            return self._calls.failure(f"{message.call} found other files after the restart of this worker than before")
        inform(node.number)
        return None

    def node_lost(self, node: Node) -> None:
        """Wait for the calls of a worker's new process."""
        self._calls.leave(node)
        for reads in self._reads.values():
            reads.pop(node.number, None)


class PassCounts:
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
