"""What the evaluator and the nodes that train have to know of each other: the driver passes it on.

The evaluator gets each checkpoint; the others get how far it is, and whether they stop.
All methods are called in events of the monitor.
"""

from dataclasses import replace

from tensorflowonspark.config import Job
from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.messages import CheckpointSaved, Evaluation


class Evaluations:
    """Passes on messages between the evaluator of a cluster, if there is one, and the nodes that train."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._last: Evaluation | None = None

    def saved(self, message: CheckpointSaved) -> None:
        """Pass a checkpoint on to the evaluator."""
        self._send(self._roster.evaluators(), message)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Pass on to the nodes that train how far the evaluator is."""
        self._last = replace(evaluation, metrics=None, history={})
        self._send(self._roster.trainers(), self._last)

    def returned(self, node: Node) -> None:
        """Note that a program has returned; the evaluator's evaluates no more."""
        if node.role.job is Job.EVALUATOR:
            self.evaluated(Evaluation())

    def ready(self, node: Node) -> None:
        """Send a node that is started again alone how far the evaluator is."""
        if self._last is not None and node.role.job is not Job.EVALUATOR:
            self._send([node], self._last)

    def _send(self, nodes: list[Node], message: object) -> None:
        for node in nodes:
            self._roster.send(node.number, message)
