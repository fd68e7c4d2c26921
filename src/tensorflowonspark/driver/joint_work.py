"""What the nodes do together: collectives, feeds that they read from files, the ends of passes, rounds."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tensorflowonspark.driver.contributions import Contributions
from tensorflowonspark.driver.file_feeds import FileFeeds
from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.driver.rendezvous import Rendezvous
from tensorflowonspark.driver.rounds import Rounds
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FeedId, FeedReport, FilesRead, PassEnded, PassesEnded, Split
from tensorflowonspark.messages import (
    Contribution,
    Failed,
    FeedWanted,
    KerasImported,
    Returned,
    RoundBroken,
    RoundExchanged,
    RoundReached,
)


def _other_backend(node: Node, workers: Sequence[Node]) -> Failed | None:
    """Return the failure of a worker whose Keras has another backend than that of the others."""
    backend = node.program.backend
    other = next((each for each in workers if each.program.backend not in ("", backend)), None)
    if other is None:
        return None
    its = f"that of {other.role} on {other.host} has {other.program.backend}"
    reason = f"its Keras has the backend {backend}, and {its}"
    advice = (
        'set one for all nodes, as env={"KERAS_BACKEND": "tensorflow"}: KERAS_BACKEND or ~/.keras/keras.json differs '
        "between the hosts"
    )
    return Failed(FailureKind.RAISED, reason, advice)


class _PassCounts:
    """The passes that workers end over rows which the chief of a ``ParameterServerStrategy`` reads."""

    def __init__(self, send: Callable[[int, object], None]) -> None:
        self._send = send
        self._ended: dict[tuple[FeedId, Split], Counter[int]] = {}  # by feed and split, and node
        self._reported: Counter[tuple[FeedId, Split]] = Counter()

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


class JointWork:
    """What the nodes of one cluster do together; all methods are called in events of the monitor.

    `later` calls a function after so many seconds. With `keeps`, what was sent to all is kept for nodes that are
    started again alone.
    """

    def __init__(self, roster: Roster, later: Callable[[float, Callable[[], None]], None], *, keeps: bool) -> None:
        self._roster = roster
        self._calls = Rendezvous(keeps=keeps)
        self._contributions = Contributions(roster.send, self._calls, keeps=keeps)
        self._file_feeds = FileFeeds(roster.send, self._calls, keeps=keeps)
        self._passes = _PassCounts(roster.send)
        self._rounds = Rounds(roster.send, roster.fed, later)

    def receive(self, node: Node, message: Any) -> Failed | None:
        """Note a message of a node; return the node's failure if others wait for it in vain."""
        workers = self._roster.fed()
        match message:
            case FeedWanted():
                return self._calls.find_absent(workers)
            case Returned():
                self._rounds.receive(node, message)
                self._file_feeds.lose(node)
                return self._calls.find_absent(workers)
            case KerasImported():
                node.program.backend = message.backend
                return _other_backend(node, workers)
            case Contribution() if message.piece or message.last:
                self._contributions.relay(node, message, workers)
            case Contribution():
                failure = self._contributions.enter(node, message, workers)
                return failure or self._find_fault(node, workers)
            case FilesRead():
                failure = self._file_feeds.receive(node, message, workers)
                return failure or self._find_fault(node, workers)
            case RoundReached() | RoundExchanged() | RoundBroken():
                self._rounds.receive(node, message)
            case PassEnded():
                self._passes.count(node, message)
                self._report_passes()
            case FeedReport():  # those of other feeds the session of the running feed handles
                self._file_feeds.report(node, message)
        return None

    def _find_fault(self, node: Node, workers: Sequence[Node]) -> Failed | None:
        return self._calls.find_absent(workers) or self._calls.find_crossed(node)

    def _report_passes(self) -> None:
        self._passes.report(self._roster.fed(), self._roster.chief.number)

    def others_in_rounds(self, node: Node) -> tuple[int, int] | None:
        """Return how many others take part in rounds with a worker, and how many must; None if it takes no part."""
        return self._rounds.others(node)

    def explain(self, node: Node, failure: Failed) -> Failed:
        """Return the failure of a node that hangs, with the call for which others wait, if there is one."""
        return self._calls.explain(node, failure)

    def go_on_without(self, node: Node) -> None:
        """Note that the others go on without a node."""
        self._report_passes()  # they may all have ended theirs
        self._file_feeds.lose(node)
        self._rounds.node_lost(node)

    def node_lost(self, node: Node) -> None:
        """Wait for the new process of a node."""
        self._calls.leave(node)
        self._contributions.node_lost(node)
        self._file_feeds.node_lost(node)
        self._rounds.node_lost(node)
