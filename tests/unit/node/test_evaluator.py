"""An evaluator in one process: which checkpoints it evaluates, in which order, and what is kept."""

import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest

from tensorflowonspark import CheckpointError, SpecError
from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.messages import CheckpointSaved, Evaluation
from tensorflowonspark.node.checkpoint.best import BestMetric
from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
from tensorflowonspark.node.checkpoint.evaluator import Evaluator, EvaluatorNode, StopCriterion, evaluation_of
from tensorflowonspark.node.checkpoint.evaluator_state import EvaluatorState
from tensorflowonspark.node.checkpoint.position import ResumePosition
from tensorflowonspark.node.checkpoint.saving import SavingNode
from tensorflowonspark.node.checkpoint.store import CheckpointStore
from tensorflowonspark.node.checkpoint.writer import SavePolicy
from tensorflowonspark.node.save_points import SavePoints

SPEC = ClusterSpec(1, evaluator=True)


class PlayedLink:
    """The link of a worker and of the evaluator, which are one process here."""

    def __init__(self):
        self.evaluation = None
        self.saves = SavePoints()
        self.saved = []
        self.sent = []  # by the evaluator

    def send(self, message):
        if isinstance(message, CheckpointSaved):
            self.saved.append(message)
        else:
            self.sent.append(message)
            self.evaluation = message

    def wait_for_checkpoints(self, known):
        return list(self.saved), True  # the training has ended

    def wait_for_evaluation(self, is_wanted, seconds=None):
        assert self.evaluation is None or is_wanted(self.evaluation)


@pytest.fixture
def link():
    return PlayedLink()


def model_of(bias=0.0):
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mae", metrics=["mse"])
    model.layers[0].bias.assign([bias])
    return model


ROWS = np.zeros((4, 1), "float32"), np.zeros((4, 1), "float32")


class Training:
    """A training whose loss of validation is the bias of its model."""

    def __init__(self, link, directory, keep=3, best=None):
        import tensorflow as tf

        role = Role(Job.WORKER, 0)
        feeds = SimpleNamespace(first=0, current=0, saved_to=(), arriving=None, fingerprint=7, taken=lambda *_: None)
        position = ResumePosition(feeds, link, 1, EvaluatorState(link, SPEC, role, directory))
        policy = SavePolicy(keep, BestMetric(best, evaluator=True), wait=True)  # the evaluator looks after each save
        self.checkpoints = Checkpoints(directory, policy, SavingNode("worker:0"), position)
        self.model = model_of()
        self.state = tf.train.Checkpoint(model=self.model, optimizer=self.model.optimizer)

    def save(self, epoch, bias, batch=0):
        self.model.layers[0].bias.assign([bias])
        self.checkpoints.save(self.state, epoch * 10 + batch, epoch=epoch, batch=batch, metrics={"loss": 1.0})


def evaluator(link, directory, patience=None, monitor="val_loss", mode="auto", log_dir=None):
    model = model_of()
    criterion = StopCriterion(BestMetric(monitor, mode, setting="monitor"), patience)
    node = EvaluatorNode(link, "", "evaluator:0", "10.0.0.7")
    return Evaluator(node, directory, model, evaluation_of(model, ROWS, None), criterion, log_dir)


def kept(directory):
    return [each.epoch for each in CheckpointStore(directory, 1).complete()]


@pytest.mark.deep
def test_all_epochs_are_evaluated_and_then_the_best_and_the_newest_are_kept(link, tmp_path):
    directory = str(tmp_path)
    training = Training(link, directory, keep=2)
    for epoch, bias in enumerate([5.0, 3.0, 1.0, 2.0, 4.0, 6.0], 1):
        training.save(epoch, bias)
        training.save(epoch, 0.0, batch=3)  # within the next one
    assert kept(directory) == [1, 2, 3, 4, 5, 6, 6]
    found = evaluator(link, directory).run()
    assert found["epoch"] == [0, 1, 2, 3, 4, 5]
    assert found["val_loss"] == [5.0, 3.0, 1.0, 2.0, 4.0, 6.0]
    assert found["val_mse"] == [25.0, 9.0, 1.0, 4.0, 16.0, 36.0]
    assert kept(directory) == [3, 4, 6]
    assert training.checkpoints.best().epoch == 3
    assert [each.metrics.epoch for each in link.sent[1:]] == [0, 1, 2, 3, 4, 5]
    assert training.checkpoints.restore(training.state, best=True) == 30
    assert float(training.model.layers[0].bias.numpy()[0]) == 1.0


@pytest.mark.deep
def test_a_later_run_evaluates_what_has_no_values_and_an_epoch_counts_once(link, tmp_path):
    directory = str(tmp_path)
    training = Training(link, directory, keep=5)
    for epoch, bias in enumerate([5.0, 3.0, 1.0], 1):
        training.save(epoch, bias)
    evaluator(link, directory).run()
    link.sent.clear()
    training.save(4, 7.0)
    assert evaluator(link, directory).run()["val_loss"] == [5.0, 3.0, 1.0, 7.0]
    assert [each.checkpoint[:13] for each in link.sent] == ["step-00000030", "step-00000040"]
    training.save(3, 2.0)  # which a training repeats that went on at the second epoch
    assert evaluator(link, directory).run() == {"epoch": [0, 1, 2], "val_loss": [5.0, 3.0, 2.0], "val_mse": [25, 9, 4]}


def test_the_best_by_the_workers_metric(link, tmp_path):
    training = Training(link, str(tmp_path), keep=1, best="val_mse")
    for epoch, bias in enumerate([5.0, 1.0, 3.0], 1):
        training.save(epoch, bias)
    evaluator(link, str(tmp_path)).run()
    best = training.checkpoints.best()
    assert (best.epoch, best.metric, best.value, best.mode) == (2, "val_mse", 1.0, "min")
    assert kept(str(tmp_path)) == [2, 3]


@pytest.mark.parametrize(
    "name",
    [
        "complete.json",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("state.data-00000-of-00001", "validation.json")),
    ],
)
def test_a_damaged_file(link, tmp_path, name, caplog):
    """A checkpoint that is damaged is left out; one whose values are is evaluated again."""
    training = Training(link, str(tmp_path), keep=9)
    for epoch, bias in enumerate([5.0, 3.0], 1):
        training.save(epoch, bias)
    if name == "validation.json":
        evaluator(link, str(tmp_path)).run()
    last = training.checkpoints.latest()
    path = tmp_path / last.name / name
    path.write_bytes(bytes(255 - each for each in path.read_bytes()))
    training.save(3, 1.0)
    found = evaluator(link, str(tmp_path)).run()
    whole = name == "validation.json"
    assert found["val_loss"] == ([5.0, 3.0, 1.0] if whole else [5.0, 1.0])
    assert ("is damaged and skipped" in caplog.text) is not whole
    assert link.sent[-1].checkpoint == training.checkpoints.latest().name


def test_a_training_far_ahead_is_a_warning(link, tmp_path, caplog):
    training = Training(link, str(tmp_path), keep=1)
    for epoch in range(1, 15):
        training.save(epoch, 1.0)
    assert caplog.text.count("11 checkpoints in") == caplog.text.count("until the evaluator has evaluated them") == 1
    link.send(Evaluation("/elsewhere"))
    training.save(15, 1.0)
    assert kept(str(tmp_path)) == [15]


@pytest.mark.parametrize(
    ("values", "patience", "mode", "expected"),
    [
        ([3.0, 2.0, 1.0], 1, "min", False),
        ([3.0, 4.0], 1, "min", True),
        ([3.0, 4.0], 1, "max", False),
        ([3.0, 4.0], 0, "min", True),
        ([3.0], 0, "min", False),
        ([3.0, 3.0, 3.0], 2, "min", True),
        ([3.0, 4.0, 1.0], 2, "min", False),
        ([3.0, 4.0, 5.0, 1.0], 2, "min", True),  # what has been met stays so
        ([math.nan, math.nan], 2, "min", True),
        ([5.0, 6.0, 7.0], None, "min", False),
    ],
)
def test_criterion(values, patience, mode, expected):
    metric = BestMetric("val_loss", mode, setting="monitor")
    assert StopCriterion(metric, patience).is_met(values, mode) is expected


def test_the_criterion_is_that_of_keras():
    import keras

    rng = np.random.default_rng(5)
    for _ in range(200):
        values = rng.integers(0, 6, 12).astype(float).tolist()
        patience = int(rng.integers(0, 5))
        callback = keras.callbacks.EarlyStopping("val_loss", patience=patience, mode="min")
        callback.set_model(SimpleNamespace(stop_training=False, get_weights=list))
        callback.on_train_begin()
        for epoch, value in enumerate(values):
            callback.on_epoch_end(epoch, {"val_loss": value})
            met = StopCriterion(BestMetric("val_loss"), patience).is_met(values[: epoch + 1], "min")
            assert met is bool(callback.stopped_epoch or callback.model.stop_training), (values, patience, epoch)
            if met:
                break


def test_a_criterion_that_is_met_is_sent_and_kept(link, tmp_path):
    training = Training(link, str(tmp_path))
    for epoch, bias in enumerate([1.0, 2.0, 3.0], 1):
        training.save(epoch, bias)
    evaluator(link, str(tmp_path), patience=2).run()
    assert [each.stop for each in link.sent] == [False, False, False, True]
    assert training.checkpoints.is_over()
    assert training.checkpoints._was_ended(training.checkpoints.latest())
    evaluator(link, str(tmp_path), patience=3).run()
    assert [each.stop for each in link.sent[4:]] == [False]
    assert not training.checkpoints._was_ended(training.checkpoints.latest())


def test_values_for_tensorboard(link, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training = Training(link, str(tmp_path / "saved"))
    for epoch, bias in enumerate([1.0, 2.0], 1):
        training.save(epoch, bias)
    evaluator(link, str(tmp_path / "saved"), log_dir=str(tmp_path / "logs")).run()
    found = EventAccumulator(str(tmp_path / "logs" / "validation"))
    found.Reload()
    assert sorted(found.Tags()["tensors"]) == ["epoch_loss", "epoch_mse"]
    assert [each.step for each in found.Tensors("epoch_loss")] == [0, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"monitor": "val_los"}, "monitor='val_los' is no metric of this training .did you mean 'val_loss'.*val_mse"),
        ({"monitor": ""}, "monitor='': expected the name of a metric"),
        ({"mode": "most"}, "mode='most': expected one of"),
        ({"patience": -1}, "patience=-1: expected a number of epochs"),
    ],
)
def test_settings_that_are_refused(link, tmp_path, settings, message):
    training = Training(link, str(tmp_path))
    training.save(1, 1.0)
    with pytest.raises(SpecError, match=message):
        evaluator(link, str(tmp_path), **settings).run()


def test_data_that_are_refused():
    import tensorflow as tf

    with pytest.raises(SpecError, match=r"gives its rows once"):
        evaluation_of(model_of(), (each for each in [ROWS]), None)
    with pytest.raises(SpecError, match=r"never ends: take\(n\)"):
        evaluation_of(model_of(), tf.data.Dataset.from_tensor_slices(ROWS).batch(2).repeat(), None)


def test_a_directory_without_checkpoints_is_an_error_at_the_end(link, tmp_path):
    Training(link, str(tmp_path / "other")).save(1, 1.0)
    with pytest.raises(CheckpointError, match=f"of an epoch in {tmp_path}/one; it saved in {tmp_path}/other"):
        evaluator(link, str(tmp_path / "one")).run()


def test_a_directory_of_an_earlier_training_is_not_taken_for_this_one(link, tmp_path):
    Training(link, str(tmp_path / "old")).save(1, 1.0)
    assert evaluator(link, str(tmp_path / "old")).run()["val_loss"] == [1.0]
    link.saved.clear()
    Training(link, str(tmp_path / "new")).save(1, 2.0)
    with pytest.raises(CheckpointError, match=f"of an epoch in {tmp_path}/old; it saved in {tmp_path}/new"):
        evaluator(link, str(tmp_path / "old")).run()


def test_a_directory_that_only_the_chief_sees(link, tmp_path, monkeypatch):
    monkeypatch.setattr("tensorflowonspark.node.checkpoint.evaluator._SEEN_SECONDS", 1)
    Training(link, str(tmp_path)).save(1, 1.0)
    name = link.saved[0].name
    (tmp_path / name / "complete.json").unlink()
    with pytest.raises(CheckpointError, match=f"evaluator:0 on 10.0.0.7 does not see the chief's {name} in {tmp_path}"):
        evaluator(link, str(tmp_path)).run()


def test_a_model_that_its_data_build(link, tmp_path):
    import keras

    training = Training(link, str(tmp_path))
    for epoch, bias in enumerate([2.0, 3.0], 1):
        training.save(epoch, bias)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mae")
    criterion = StopCriterion(BestMetric("val_loss"))
    node = EvaluatorNode(link, "", "evaluator:0", "localhost")
    assert Evaluator(node, str(tmp_path), model, evaluation_of(model, ROWS, 2), criterion).run()["val_loss"] == [2, 3]


def test_a_model_of_other_layers_is_refused(link, tmp_path):
    import keras

    Training(link, str(tmp_path)).save(1, 1.0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("adam", "mae")
    node = EvaluatorNode(link, "", "evaluator:0", "localhost")
    with pytest.raises(CheckpointError, match="does not fit the program's model"):
        Evaluator(
            node, str(tmp_path), model, evaluation_of(model, ROWS, 2), StopCriterion(BestMetric("val_loss"))
        ).run()


def test_an_evaluator_with_a_loop_of_its_own_is_not_waited_for(link, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    EvaluatorState(link, SPEC, Role(Job.EVALUATOR, 0), str(tmp_path)).note_own_loop()
    training = Training(link, str(tmp_path), keep=1)
    for epoch in range(1, 4):
        training.save(epoch, 1.0)
    assert kept(str(tmp_path)) == [3]
    assert training.checkpoints.best() is None
