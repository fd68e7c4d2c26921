"""The checkpoints that are best by a metric: which are kept, which is restored, and what is refused."""

import logging
import re
import uuid

import numpy as np
import pytest

from tensorflowonspark import CheckpointError, SpecError
from tensorflowonspark.keras.direction import better_direction
from tensorflowonspark.node.checkpoint.best import BestMetric
from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
from tensorflowonspark.node.checkpoint.saving import SavingNode
from tensorflowonspark.node.checkpoint.store import CheckpointStore
from tensorflowonspark.node.checkpoint.writer import SavePolicy


@pytest.fixture
def directory():
    return f"memory://{uuid.uuid4().hex}"


def checkpoints(directory, keep=2, best="loss", mode="auto"):
    """Return checkpoints that are complete when `save` returns, so that their directory can be looked at."""
    policy = SavePolicy(keep, BestMetric(best, mode), wait=True)
    return Checkpoints(directory, policy, SavingNode("worker:0"))


def write(found, values, metric="loss"):
    """Write a checkpoint after each step, whose state is its step; return the state."""
    import tensorflow as tf

    step = tf.Variable(0)
    for number, value in enumerate(values, 1):
        step.assign(number)
        found.save(tf.train.Checkpoint(step=step), number, metrics=None if value is None else {metric: value})
    return tf.train.Checkpoint(step=step)


def kept(directory):
    return [saved.step for saved in CheckpointStore(directory, 1).complete()]


@pytest.mark.parametrize(
    ("mode", "values", "expected", "best"),
    [
        ("auto", [5.0, 3.0, 4.0, 6.0, 7.0], [2, 3, 5], 2),
        ("max", [5.0, 9.0, 7.0, 6.0, 1.0], [2, 3, 5], 2),
        ("auto", [3.0, 2.0, 1.0], [2, 3], 3),  # the newest is among the best
        ("auto", [1.0, 1.0, 1.0, 1.0], [1, 2, 4], 1),  # of equal ones the first, as with Keras
        ("auto", [2.0, float("nan"), float("inf"), 4.0], [1, 4], 1),
        ("auto", [None, None, None], [2, 3], None),  # within epochs: the newest, as without a metric
        ("auto", [3.0, None, None, None], [1, 4], 1),
    ],
)
def test_the_best_are_kept_and_the_newest(directory, mode, values, expected, best):
    found = checkpoints(directory, mode=mode)
    state = write(found, values)
    assert kept(directory) == expected
    assert found.latest().step == len(values)
    if best is None:
        assert found.best() is None
        return
    assert (found.best().step, found.best().value) == (best, values[best - 1])
    assert found.restore(state, best=True) == int(state.step) == best
    assert found.restore(state) == int(state.step) == len(values)  # from which training resumes


def test_a_later_program_finds_the_best_without_its_metrics_name(directory):
    write(checkpoints(directory, best="auc", mode="max"), [0.5, 0.9, 0.7], "auc")
    later = checkpoints(directory, best=None)
    assert (later.best().metric, later.best().value) == ("auc", 0.9)
    write(later, [None])  # without a metric the newest are kept
    assert kept(directory) == [3, 1]


def test_values_of_another_metric_do_not_count(directory):
    write(checkpoints(directory, best="auc", mode="max"), [0.1, 0.2], "auc")
    write(found := checkpoints(directory), [0.5, 0.7, 0.6])
    assert found.best().value == 0.5
    assert kept(directory) == [1, 3]


def test_a_damaged_best_one_gives_way_to_the_next(tmp_path, caplog):
    state = write(found := checkpoints(str(tmp_path)), [1.0, 2.0, 3.0])
    (tmp_path / found.best().name / "state.index").write_bytes(b"?")
    assert found.restore(state, best=True) == 2
    assert "is damaged and skipped" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"best": ""}, "best='': expected the name of a metric"),
        ({"best": 3}, "best=3: expected the name of a metric"),
        ({"mode": "maximum"}, "mode='maximum': expected one of 'auto', 'min', 'max'"),
        ({"best": None, "mode": "max"}, "mode='max' is about the metric that best= names, and there is none"),
    ],
)
def test_settings_that_can_not_be_right_are_refused(directory, settings, words):
    with pytest.raises(SpecError, match=words):
        checkpoints(directory, **settings)


def test_a_metric_that_is_not_there_is_refused_by_name(directory, caplog):
    import tensorflow as tf

    with pytest.raises(
        SpecError, match=r"best='los' is no metric of this training \(did you mean 'loss'\?\): it has loss"
    ):
        write(checkpoints(directory, best="los"), [1.0])
    with pytest.raises(SpecError, match="best='val_auc' is no .*: it has loss, val_loss"):
        BestMetric("val_auc").fields({"loss": 1, "val_loss": 1})
    with pytest.raises(
        SpecError, match="best='gain': Keras does not know whether less or more of it is better: give mode"
    ):
        BestMetric("gain").fields({"gain": 1})
    validated = BestMetric("val_loss")
    with caplog.at_level(logging.WARNING):  # once: later epochs may be validated
        found = [
            validated.fields(metrics)["mode"] for metrics in ({"loss": 1}, {"loss": 1}, {"loss": 1, "val_loss": 1})
        ]
    assert found == ["", "", "min"]
    (record,) = caplog.records
    assert "best='val_loss' is no metric of this training" in record.getMessage()
    assert "an epoch without validation_data has no value" in record.getMessage()
    with pytest.raises(CheckpointError, match="no checkpoint in .* has a value of loss: write them by"):
        checkpoints(directory).restore(tf.train.Checkpoint(), best=True)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("val_loss", "min"),
        ("auc", "max"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("loss", "min"), ("val_accuracy", "max"), ("mae", "min"))
        ),
    ],
)
def test_less_or_more_is_better_by_the_rule_of_keras(metric, expected):
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy", "mae", keras.metrics.AUC(name="auc")])
    model.train_on_batch(np.zeros((1, 2)), np.ones((1, 1)))
    assert better_direction(metric, model) == expected
    assert not model.stop_training


def test_the_callback_keeps_the_best_and_resumes_from_the_newest(directory):
    import keras
    import tensorflow as tf

    class Given(keras.callbacks.Callback):
        """Gives each epoch the value that a validation might."""

        def on_epoch_end(self, epoch, logs=None):
            logs["val_loss"] = [0.9, 0.2, 0.4, 0.6][epoch]

    def fit(epochs):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        found = checkpoints(directory, best="val_loss")
        x = np.arange(8.0).reshape(8, 1)
        history = model.fit(x, 2 * x, batch_size=8, epochs=epochs, verbose=0, callbacks=[Given(), found.callback()])
        return found, model, history.history["loss"]

    fit(3)
    found, model, losses = fit(4)
    x = np.arange(8.0).reshape(8, 1)
    assert len(losses) == 4  # of which three are the first run's
    assert kept(directory) == [2, 3, 4]
    assert (found.best().epoch, found.best().value) == (2, 0.2)
    newest = model.evaluate(x, 2 * x, verbose=0)
    assert found.restore(tf.train.Checkpoint(model=model), best=True) == 2
    assert model.evaluate(x, 2 * x, verbose=0) > newest  # which the real loss is, epoch by epoch


def test_a_training_that_is_complete_logs_it_and_returns_its_history(directory, caplog):
    import keras

    def fit():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        found = Checkpoints(directory, SavePolicy(1), SavingNode("worker:0"))
        x = np.arange(8.0).reshape(8, 1)
        return model.fit(x, 2 * x, batch_size=8, epochs=2, verbose=0, callbacks=[found.callback()]).history

    def said():
        return [each.getMessage() for each in caplog.records if each.name.startswith("tensorflowonspark.")]

    first = fit()
    assert not said()
    assert fit() == first
    (message,) = said()
    assert re.fullmatch(r"the checkpoint step-0+2-\w+ has all 2 epochs: fit trains nothing \(clear.*", message)
