"""Collectives of the workers without TensorFlow, through the driver."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tensorflowonspark.messages import Contribution
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.setup import NodeSetup

_CHUNK_BYTES = 4 << 20


@dataclass
class NodeCollectives:
    """The collectives of one worker.

    The driver forwards the values of the other workers to the first one, which merges them, and its result to all.
    """

    setup: NodeSetup
    link: Link
    _numbers: "count[int]" = field(default_factory=count)

    def combine(self, call: str, value: Any, merge: Callable[[list[Any]], Any]) -> Any:
        """Return the result of `merge` for all workers' values.

        All workers make the same calls in the same order. One whose program returns instead, or makes another call,
        fails the cluster.

        `merge` takes the values in the workers' order, and runs on the first one. `call` is what the program calls, for
        errors.
        """
        collective = next(self._numbers)
        roles = list(self.setup.spec.roles)
        first, *others = [roles.index(role) for role in self.setup.spec.fed]
        self.link.send(Contribution(collective, call))
        if self.setup.number != first:
            self._send(collective, call, pickle.dumps(value))
            return pickle.loads(self.link.wait_for_contribution(collective, first))
        received = [pickle.loads(self.link.wait_for_contribution(collective, number)) for number in others]
        merged = merge([value, *received])
        self._send(collective, call, pickle.dumps(merged))
        return merged

    def _send(self, collective: int, call: str, data: bytes) -> None:
        for start in range(0, max(1, len(data)), _CHUNK_BYTES):
            stop = start + _CHUNK_BYTES
            self.link.send(Contribution(collective, call, data[start:stop], last=stop >= len(data)))
