"""What the nodes that train know of the evaluator: whether it evaluates their checkpoints, and has them stop."""

from functools import lru_cache
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.messages import EVALUATOR_START_SECONDS, Evaluation
from tensorflowonspark.node.driver_link import Link


@lru_cache
def place_of(directory: str) -> tuple[Any, ...]:
    """Return what is the same for all names of a directory, in all threads."""
    files, root = storage.file_system(directory)
    return type(files), repr(files.storage_options), root


class EvaluatorState:
    """What a node has received about the cluster's evaluator, for the checkpoints in one directory."""

    def __init__(self, link: Link, spec: ClusterSpec, role: Role, directory: str) -> None:
        self._link = link
        self.exists = spec.evaluator and role.job is not Job.EVALUATOR
        self._reads = role.job is Job.EVALUATOR
        self._directory = directory

    def _is_here(self, evaluation: Evaluation) -> bool:
        return bool(evaluation.directory) and place_of(evaluation.directory) == place_of(self._directory)

    def awaits(self) -> bool:
        """Return whether the evaluator may yet evaluate checkpoints of the directory."""
        evaluation = self._link.evaluation
        return self.exists and (evaluation is None or self._is_here(evaluation))

    def stops(self) -> bool:
        """Return whether the training is to end, by what the evaluator has found so far."""
        evaluation = self._link.evaluation
        return self.exists and evaluation is not None and self._is_here(evaluation) and evaluation.stop

    def wait_for_start(self) -> None:
        """Wait until the evaluator has begun with the checkpoints; if it does something else, not for ever."""
        if self.exists:
            self._link.wait_for_evaluation(lambda _: True, EVALUATOR_START_SECONDS)

    def wait_for(self, checkpoint: str) -> None:
        """Wait until the evaluator is done with a checkpoint, if it evaluates those of the directory."""
        self.wait_for_start()
        if self.awaits() and self._link.evaluation is not None:
            self._link.wait_for_evaluation(lambda found: not self._is_here(found) or found.checkpoint == checkpoint)

    def note_own_loop(self) -> None:
        """Have the others know, on an evaluator that restores checkpoints in a loop of its own: none waits for it."""
        if self._reads and self._link.evaluation is None:
            self._link.evaluation = Evaluation()
            self._link.send(Evaluation())
