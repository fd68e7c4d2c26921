"""The driver's part of collectives: it relays what the workers contribute.

The first worker receives the contributions of the others, and they receive its result (`node/collectives.py`).

Where a worker is started again alone, its new process makes the earlier calls too, and receives what they have resulted
in then.
"""

from collections.abc import Callable, Sequence

from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.rendezvous import Kind, Rendezvous
from tensorflowonspark.messages import Contributed, Contribution, Failed


class Contributions:
    """What the workers of one cluster contribute to collectives.

    With `keeps`, contributions are kept for workers that are started again alone.
    """

    def __init__(self, send: Callable[[int, object], None], calls: Rendezvous, *, keeps: bool = False) -> None:
        self._send = send
        self._calls = calls
        self._keeps = keeps
        self._begun: dict[tuple[int, int], list[bytes]] = {}  # pieces, by collective and sender
        self._kept: dict[tuple[int, int], list[bytes]] = {}  # of whole contributions
        self._delivered: dict[int, set[tuple[int, int]]] = {}  # contributions, by the node that has them

    def enter(self, node: Node, message: Contribution, workers: Sequence[Node]) -> Failed | None:
        """Note that a worker has reached a collective; send it what has come before it was started again."""
        number = message.collective
        self._begun.pop((number, node.number), None)
        for sender in _partners(node, workers):
            self._deliver(number, sender.number, node)
        failure = self._calls.enter(Kind.COLLECTIVE, number, node, message.call)
        if failure is None:
            self._calls.complete(Kind.COLLECTIVE, number, workers)
        return failure

    def relay(self, node: Node, message: Contribution, workers: Sequence[Node]) -> None:
        """Send a piece of a worker's contribution to those that need it."""
        if self._keeps:
            self._keep(node, message, workers)
            return
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
        if key not in self._kept or key in delivered or receiver.process.channel is None:
            return
        delivered.add(key)
        *pieces, last = self._kept[key]
        for piece in pieces:
            self._send(receiver.number, Contributed(*key, piece, last=False))
        self._send(receiver.number, Contributed(*key, last, last=True))

    def node_lost(self, node: Node) -> None:
        """Send a worker's new process what its former one has had."""
        self._delivered.pop(node.number, None)


def _partners(node: Node, workers: Sequence[Node]) -> Sequence[Node]:
    """Return the workers to which one sends its contribution, and from which it receives theirs."""
    first, *others = workers
    return others if node.number == first.number else [first]
