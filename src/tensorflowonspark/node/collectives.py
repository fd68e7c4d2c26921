"""Values that the workers of a cluster combine without TensorFlow, by way of the driver."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from tensorflowonspark.messages import Contribution
from tensorflowonspark.node.driver_link import Link, NodeSetup

__all__ = ["Collectives"]

_PIECE_BYTES = 4 << 20


@dataclass
class Collectives:
    """The collectives of one worker.

    The first worker merges what all have; the driver passes the others' values to it, and what it makes of them to all.

    Attributes
    ----------
    setup : NodeSetup
        Which node it is.
    link : Link
        To the driver.
    """

    setup: NodeSetup
    link: Link
    _numbers: "count[int]" = field(default_factory=count)

    def combine(self, call: str, part: bytes, merge: Callable[[list[bytes]], bytes]) -> bytes:
        """Return what `merge` makes of all workers' parts, in their order.

        All workers call this as often and in the same order. One that returns instead, or calls something else, fails
        the cluster.

        Parameters
        ----------
        call : str
            What the program called, for errors; the same on all workers.
        part : bytes
            What this worker gives.
        merge : callable
            Runs on the first worker.
        """
        collective = next(self._numbers)
        roles = list(self.setup.spec.roles)
        first, *others = [roles.index(role) for role in self.setup.spec.fed]
        self.link.send(Contribution(collective, call))
        if self.setup.number != first:
            self._send(collective, call, part)
            return self.link.wait_for_contribution(collective, first)
        merged = merge([part, *(self.link.wait_for_contribution(collective, number) for number in others)])
        self._send(collective, call, merged)
        return merged

    def _send(self, collective: int, call: str, data: bytes) -> None:
        for start in range(0, max(1, len(data)), _PIECE_BYTES):
            stop = start + _PIECE_BYTES
            self.link.send(Contribution(collective, call, data[start:stop], last=stop >= len(data)))
