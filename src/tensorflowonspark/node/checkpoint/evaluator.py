"""An evaluator: it evaluates each checkpoint of an epoch that the training writes, in their order.

The driver informs it of each one and of the end of the training, so it looks into the directory only then. What it has
found stays beside the checkpoint: a restart, or a later run, goes on with the checkpoints that have nothing there.
"""

import inspect
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from tensorflowonspark.errors import CheckpointError, SpecError
from tensorflowonspark.keras.jax.training_state import is_state
from tensorflowonspark.messages import CheckpointSaved, Evaluation, ReportedMetrics
from tensorflowonspark.node.checkpoint.best import BestMetric
from tensorflowonspark.node.checkpoint.evaluator_state import place_of
from tensorflowonspark.node.checkpoint.parts import divided_objects, not_seen, read_parts
from tensorflowonspark.node.checkpoint.state import read_state
from tensorflowonspark.node.checkpoint.store import CheckpointStore, SavedCheckpoint
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.metric_values import numbers_in

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_STORE_SECONDS, _LONGEST_PAUSE = 60.0, 10.0  # for which a store that fails is tried again, and between two tries
_SEEN_SECONDS = 10  # for a file system to show what another host has written
_INFINITE = -1  # cardinality of a tf.data.Dataset


@dataclass(frozen=True)
class StopCriterion:
    """Ends a training when a metric has not become better for `patience` epochs, as Keras's ``EarlyStopping``.

    Examples
    --------
    >>> StopCriterion(BestMetric("val_loss", "min", setting="monitor"), patience=2).is_met([0.5, 0.4, 0.6, 0.4], "min")
    True
    """

    metric: BestMetric
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 0:
            raise SpecError(f"patience={self.patience}: expected a number of epochs, or None")

    def is_met(self, values: list[float], mode: str) -> bool:
        """Return whether any of the epochs was the last one that it allows."""
        best, waited = math.inf, 0
        for value in values if self.patience is not None else ():
            cost = -value if mode == "max" else value
            best, waited = (cost, 0) if cost < best else (best, waited + 1)
            if waited >= max(1, self.patience or 0):
                return True
        return False


@dataclass(frozen=True)
class EvaluatorNode:
    """The node on which an evaluator runs."""

    link: Link
    scratch: str
    role: str
    host: str


class Evaluator:
    """Evaluates the checkpoints in one directory with a model on data, until the training has ended."""

    def __init__(
        self,
        node: EvaluatorNode,
        directory: str,
        model: Any,
        evaluate: Callable[[], Any],
        criterion: StopCriterion,
        log_dir: str | None = None,
    ) -> None:
        self._node = node
        self._directory = directory
        self._model = model
        self._evaluate_model = evaluate
        self._criterion = criterion
        self._log_dir = log_dir
        self._store = CheckpointStore(directory, keep=1)
        self._epochs: list[tuple[int, dict[str, float]]] = []  # the values of each
        self._done: set[str] = set()  # names of checkpoints
        self._writer: Any = None  # of TensorBoard

    def run(self) -> dict[str, list[float]]:
        """Evaluate; return the values of all epochs, and their numbers as ``epoch``, when the training has ended."""
        self._begin()
        while True:
            saves, ended = self._node.link.wait_for_checkpoints(-1)  # before it looks for them
            found = self._found(saves)
            waiting = [each for each in self._store.unevaluated(found) if each.name not in self._done]
            for each in waiting:
                self._evaluate(each)
            if not waiting and ended:
                break
            self._node.link.wait_for_checkpoints(len(saves))
        if not (self._epochs or self._done) or (saves and not any(map(self._is_of_epoch, saves))):
            raise self._nothing(saves)
        if found and found[-1].keep:  # the training's program has ended: what it kept for this one may go
            self._store.keep = found[-1].keep
            self._tried(self._store.prune)
        return self._history

    def _tried(self, use: Callable[[], _T]) -> _T:
        """Return what a use of the store returns; while the store fails, try again: the training needs no evaluator."""
        until, pause = time.monotonic() + _STORE_SECONDS, 1.0
        while True:
            try:
                return use()
            except CheckpointError as error:
                if error.__cause__ is None or time.monotonic() >= until:  # it is no error of the store, or lasts
                    raise
                if pause == 1.0:
                    _log.warning("the evaluator tries again for %g s: %s", _STORE_SECONDS, error)
                time.sleep(min(pause, _STORE_SECONDS))
                pause = min(2.0 * pause, _LONGEST_PAUSE)

    def _begin(self) -> None:
        """Go on where an evaluator before this one was, and have the others know that this one begins."""
        last = next((each for each in reversed(self._tried(self._store.complete)) if each.validation), None)
        values: dict[str, list[Any]] = dict(last.validation) if last else {"epoch": []}
        for epoch, *row in zip(values.pop("epoch"), *values.values(), strict=True):
            self._epochs.append((epoch, dict(zip(values, row, strict=True))))
        if last is None:
            self._send("", stop=False)
            return
        if last.ends:  # Keras knows what is better only once a model has been evaluated
            self._evaluate_model()
        metrics = ReportedMetrics(*self._epochs[-1], ended=True)
        self._send(last.name, stop=last.ends and self._is_over(), metrics=metrics)

    def _found(self, saves: list[CheckpointSaved]) -> list[SavedCheckpoint]:
        """Return the checkpoints that are there; raise if that of the chief is not, as on a host of other files."""
        names = [each.name for each in saves if self._is_of_epoch(each)]
        for _ in range(_SEEN_SECONDS):
            found = self._tried(self._store.complete)
            if not names or names[-1] in (*self._done, *self._store.damaged, *(each.name for each in found)):
                return found
            time.sleep(1.0)
        if self._done.intersection(names):  # the program has removed it
            return found
        raise not_seen(self._directory, f"{self._node.role} on {self._node.host}", f"the chief's {names[-1]}")

    def _is_of_epoch(self, saved: CheckpointSaved) -> bool:
        return bool(saved.epoch) and place_of(saved.directory) == place_of(self._directory)

    def _nothing(self, saves: list[CheckpointSaved]) -> CheckpointError:
        elsewhere = sorted({each.directory for each in saves} - {self._directory})
        where = f"; it saved in {', '.join(elsewhere)}" if elsewhere else ""
        return CheckpointError(
            f"the training has ended without a checkpoint of an epoch in {self._directory}{where}: give "
            "ctx.evaluate_checkpoints the directory of ctx.checkpoint, whose callback() goes to fit; a loop of one's "
            "own counts epochs by save(..., epoch=...)"
        )

    def _evaluate(self, saved: SavedCheckpoint) -> None:
        begun = time.monotonic()
        values = self._values(saved)
        self._done.add(saved.name)
        if values is None:  # a warning has said that it is damaged
            self._send(saved.name, stop=self._is_over())
            return
        epoch = saved.epoch - 1
        self._epochs = [*(each for each in self._epochs if each[0] < epoch), (epoch, values)]
        monitored = self._criterion.metric.fields(values, self._model)
        if saved.metric.startswith("val_") and saved.metric != monitored["metric"]:
            monitored = BestMetric(saved.metric, saved.mode or "auto").fields(values, self._model)
        stop = self._is_over()
        record = {"validation": self._history, "ends": stop, **monitored}
        self._tried(lambda: self._store.add_validation(saved, **record))
        self._write_log(epoch, values)
        seconds = time.monotonic() - begun
        self._send(saved.name, stop=stop, metrics=ReportedMetrics(epoch, values, ended=True, seconds=seconds))

    def _values(self, saved: SavedCheckpoint) -> dict[str, float] | None:
        """Return the values of a checkpoint by their names in ``fit``; None if it is damaged."""
        if not getattr(self._model, "built", True):
            self._evaluate_model()
        with TemporaryDirectory(prefix="tfos-", dir=self._node.scratch or None) as local:
            state: Any = self._model
            if not is_state(state):
                import tensorflow as tf

                state = tf.train.Checkpoint(model=self._model)
            divided = divided_objects(state)
            if not self._tried(lambda: self._store.fetch(saved, local) and read_parts(self._store, saved, divided)):
                return None
            read_state(state, local, self._node.role, f"{self._directory}/{saved.name}", is_built=False)
        return {f"val_{name}": value for name, value in numbers_in(self._evaluate_model()).items()}

    @property
    def _history(self) -> dict[str, list[float]]:
        names = dict.fromkeys(name for _, values in self._epochs for name in values)
        history: dict[str, list[float]] = {"epoch": [epoch for epoch, _ in self._epochs]}
        return history | {name: [values.get(name, math.nan) for _, values in self._epochs] for name in names}

    def _is_over(self) -> bool:
        """Return whether the criterion ends the training, by the values so far."""
        if not self._epochs:
            return False
        monitored = self._criterion.metric.fields(self._epochs[-1][1], self._model)
        return self._criterion.is_met(self._history[monitored["metric"]], monitored["mode"])

    def _send(self, checkpoint: str, *, stop: bool, metrics: ReportedMetrics | None = None) -> None:
        self._node.link.send(Evaluation(self._directory, checkpoint, stop, metrics, self._history))

    def _write_log(self, epoch: int, values: dict[str, float]) -> None:
        """Write values for TensorBoard, where Keras's callback has those of ``fit``."""
        if self._log_dir is None:
            return
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(f"{self._log_dir}/validation")
        with self._writer.as_default(step=epoch):
            for name, value in values.items():
                tf.summary.scalar(f"epoch_{name.removeprefix('val_')}", value)
        self._writer.flush()


def evaluation_of(model: Any, data: Any, batch_size: int | None) -> Callable[[], Any]:
    """Return what evaluates a model on data, as ``fit`` does on its ``validation_data``.

    Data that end never, or after one pass, are a `SpecError`.
    """
    problem = ""
    if inspect.isgenerator(data):
        problem = "gives its rows once: give a dataset, arrays, or a keras.utils.PyDataset"
    if hasattr(data, "cardinality") and int(data.cardinality()) == _INFINITE:
        problem = "never ends: take(n) gives it an end"
    if problem:
        raise SpecError(f"ctx.evaluate_checkpoints: the data are evaluated once for each epoch, and {data!r} {problem}")
    parts = dict(zip(("x", "y", "sample_weight"), data if isinstance(data, tuple) else (data,), strict=False))
    return lambda: model.evaluate(**parts, batch_size=batch_size, verbose=0, return_dict=True)
