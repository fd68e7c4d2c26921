"""Which nodes there are, who among them does what, and how to speak to them."""

from collections.abc import Iterable
from contextlib import suppress

from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.errors import FeedError
from tensorflowonspark.parts import Seal
from tensorflowonspark.spec import ClusterSpec, Role
from tensorflowonspark.transport import ConnectionLost, Packed

__all__ = ["Roster"]


class Roster:
    """All nodes of one cluster.

    Parameters
    ----------
    spec : ClusterSpec
        Which there are to be.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.nodes = [Node(number, role) for number, role in enumerate(spec.roles)]
        # Asked for at each word of each node: so they are found once.
        self._fed = self._nodes_of(spec.fed)
        self._trainers = self._nodes_of(spec.trainers)

    def tell(self, number: int, message: object) -> None:
        """Say something to one node; if it is gone, its end will be noticed."""
        channel = self.nodes[number].channel
        if isinstance(message, Seal):
            self.nodes[number].feed_given = message.feed
        if channel is not None:
            with suppress(ConnectionLost):
                channel.send(message)

    def tell_all(self, message: object) -> None:
        """Say something to all nodes."""
        packed = Packed(message)
        for node in self.nodes:
            self.tell(node.number, packed)

    def fed(self) -> list[Node]:
        """Return the nodes that are fed, but for those that were lost."""
        return [node for node in self._fed if not node.lost]

    def readers(self) -> list[Node]:
        """Return the nodes whose programs read what is fed: with a ParameterServerStrategy the chief, for all.

        Raises
        ------
        FeedError
            If workers serve, and there is no chief.
        """
        serving = [str(node.role) for node in self.fed() if node.serving]
        if not serving:
            return self.fed()
        chief = [node for node in self.nodes if node.role == self.spec.chief_role]
        if chief[0].serving:
            raise FeedError(
                f"{', '.join(serving)} serves a ParameterServerStrategy (ctx.join_server), and there is no chief to "
                "read what is fed: make the cluster with chief=True"
            )
        return [node for node in self.fed() if not node.serving] + chief

    def trainers(self) -> list[Node]:
        """Return the nodes that train."""
        return list(self._trainers)

    def _nodes_of(self, roles: Iterable[Role]) -> list[Node]:
        wanted = set(roles)
        return [node for node in self.nodes if node.role in wanted]
