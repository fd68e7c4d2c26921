"""What the evaluator and the nodes that train have to know of each other: the driver passes it on.

The evaluator gets each checkpoint; the others get how far it is, and whether they stop.
All methods are called in events of the monitor.
"""

from dataclasses import replace
from typing import Any

from tensorflowonspark.config import Job
from tensorflowonspark.driver.nodes import Node, Roster
from tensorflowonspark.messages import CheckpointSaved, Evaluation, NodeReady, Returned


class Evaluations:
    """Passes on messages between the evaluator of a cluster, if there is one, and the nodes that train."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._last: Evaluation | None = None

    def receive(self, node: Node, message: Any) -> None:
        """Pass on what a message of a node says."""
        match message:
            case _ if not self._roster.evaluators():
                return
            case CheckpointSaved():
                self._send(self._roster.evaluators(), message)
            case Evaluation():
                self._tell(message)
            case Returned() if node.role.job is Job.EVALUATOR:
                self._tell(Evaluation())
            case NodeReady() if self._last is not None and node.role.job is not Job.EVALUATOR:
                self._send([node], self._last)  # it is started again alone

    def _tell(self, evaluation: Evaluation) -> None:
        self._last = replace(evaluation, metrics=None, history={})
        self._send(self._roster.trainers(), self._last)

    def _send(self, nodes: list[Node], message: object) -> None:
        for node in nodes:
            self._roster.send(node.number, message)
