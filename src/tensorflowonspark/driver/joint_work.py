"""What the nodes do together: collectives, feeds that they read from files, the ends of passes, rounds."""

from collections.abc import Callable, Sequence
from typing import Any

from tensorflowonspark.driver.collectives import Collectives, FileFeeds, PassCounts
from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.driver.rounds import Rounds
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FeedReport, FilesRead, PassEnded
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
    other = next((each for each in workers if each.backend not in ("", node.backend)), None)
    if other is None:
        return None
    reason = f"its Keras has the backend {node.backend}, and that of {other.role} on {other.host} has {other.backend}"
    advice = (
        'set one for all nodes, as env={"KERAS_BACKEND": "tensorflow"}: KERAS_BACKEND or ~/.keras/keras.json differs '
        "between the hosts"
    )
    return Failed(FailureKind.RAISED, reason, advice)


class JointWork:
    """What the nodes of one cluster do together; all methods are called in events of the monitor.

    Parameters
    ----------
    roster : Roster
        The nodes.
    later : callable
        Takes seconds, and a function to call after these.
    keeps : bool
        Whether what was sent to all is kept for nodes that are started again alone.
    """

    def __init__(self, roster: Roster, later: Callable[[float, Callable[[], None]], None], *, keeps: bool) -> None:
        self._roster = roster
        self._collectives = Collectives(roster.send, keeps=keeps)
        self._file_feeds = FileFeeds(roster.send, keeps=keeps)
        self._passes = PassCounts(roster.send)
        self._rounds = Rounds(roster.send, roster.fed, later)

    def receive(self, node: Node, message: Any) -> Failed | None:
        """Note a message of a node; return the node's failure if others wait for it in vain."""
        workers = self._roster.fed()
        match message:
            case FeedWanted() | Returned():
                if isinstance(message, Returned):
                    self._rounds.receive(node, message)
                failure = self._file_feeds.receive(node, message, workers)
                return failure or self._collectives.receive(node, message, workers)
            case KerasImported():
                node.backend = message.backend
                return _other_backend(node, workers)
            case Contribution():
                failure = self._collectives.receive(node, message, workers)
                return failure or self._file_feeds.find_crossed(node, self._collectives)
            case FilesRead():
                failure = self._file_feeds.receive(node, message, workers)
                return failure or self._file_feeds.find_crossed(node, self._collectives)
            case RoundReached() | RoundExchanged() | RoundBroken():
                self._rounds.receive(node, message)
            case PassEnded():
                self._passes.count(node, message)
                self._report_passes()
            case FeedReport():  # those of other feeds the session of the running feed handles
                self._file_feeds.report(node, message)
        return None

    def _report_passes(self) -> None:
        self._passes.report(self._roster.fed(), self._roster.chief.number)

    def others_in_rounds(self, node: Node) -> tuple[int, int] | None:
        """Return how many others take part in rounds with a worker, and how many must; None if it takes no part."""
        return self._rounds.others(node)

    def explain(self, node: Node, failure: Failed) -> Failed:
        """Return the failure of a node that hangs, with the call for which others wait, if there is one."""
        return self._collectives.explain(node, failure)

    def go_on_without(self, node: Node) -> None:
        """Note that the others go on without a node."""
        self._report_passes()  # they may all have ended theirs
        self._file_feeds.lose(node)
        self._rounds.node_lost(node)

    def node_lost(self, node: Node) -> None:
        """Wait for the new process of a node."""
        self._collectives.node_lost(node)
        self._file_feeds.node_lost(node)
        self._rounds.node_lost(node)
