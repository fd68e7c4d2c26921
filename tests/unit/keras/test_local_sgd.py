"""The callbacks of local SGD in one process: their arguments, their steps, and what they refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.keras import DiLoCo, LocalSGD, round_state
from tests.support.programs import small_model


@pytest.fixture
def rows():
    drawn = np.random.default_rng(0)
    return drawn.normal(size=(64, 3)).astype("float32"), drawn.normal(size=64).astype("float32")


class Others:
    """In place of the other workers: they change no weight, and end when this worker does."""

    name = "worker:0 on host"
    sent_bytes = 0
    size = 2

    def __init__(self, ends_at=None):
        self.calls = []
        self._ends_at = ends_at

    def join(self, settings, weights):
        self.settings = settings
        self.calls.append("join")
        return round_state.first_shared(settings, weights, 0), False

    def average(self, weights, steps, last):
        self.calls.append((steps, last))
        shared = round_state.first_shared(self.settings, weights, len(self.calls))
        return shared, last or len(self.calls) == self._ends_at


@pytest.fixture
def connect(monkeypatch):
    """Connects this process with other workers, as a node does, until the end of the test."""
    monkeypatch.setattr(round_state, "_connection", round_state._Connection())
    return round_state.connect


@pytest.fixture
def others(connect):
    made = Others()
    connect(made)
    return made


@pytest.mark.parametrize(
    ("kind", "arguments", "told"),
    [
        (LocalSGD, {"every": 0}, "every=0: expected a number of steps from 1"),
        (LocalSGD, {"compress": "int8"}, "compress='int8': expected 'float16' or 'float32'"),
        (DiLoCo, {"outer_learning_rate": 0.0}, "outer_learning_rate=0.0: expected a number above 0"),
        (DiLoCo, {"outer_momentum": 1.0}, "outer_momentum=1.0: expected a number from 0 to below 1"),
        (DiLoCo, {"min_workers": 0}, "min_workers=0: expected a number from 1"),
        (DiLoCo, {"timeout": 0}, "timeout=0: expected seconds"),
    ],
)
def test_bad_arguments_are_refused(kind, arguments, told):
    with pytest.raises(SpecError, match=told):
        kind(**arguments)


@pytest.mark.deep
def test_rounds_come_after_steps_before_validation_and_at_the_end(others, rows):
    small_model().fit(*rows, batch_size=8, epochs=2, validation_data=rows, verbose=0, callbacks=[LocalSGD(every=5)])
    epoch = [(5, False), (3, False)]
    assert others.calls == ["join", *epoch, *epoch, (0, True)]


def test_weights_of_float64_pass_through_a_round_as_they_are(others, rows):
    model = keras.Sequential([keras.Input((3,), dtype="float64"), keras.layers.Dense(1, dtype="float64")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.set_weights([np.full((3, 1), 1 / 3), np.array([2.0**30 + 2.0**-20])])
    model.fit(*rows, verbose=0, callbacks=[LocalSGD(every=1)])
    assert [each.ravel()[0] for each in model.get_weights()] == [1 / 3, 2.0**30 + 2.0**-20]


@pytest.mark.deep
def test_steps_of_one_execution_all_count(others, rows):
    model = small_model()
    model.compile("sgd", "mse", steps_per_execution=4)
    model.fit(*rows, batch_size=8, epochs=2, verbose=0, callbacks=[LocalSGD(every=6)])
    assert others.calls == ["join", (8, False), (8, False), (0, True)]


@pytest.mark.deep
def test_a_worker_ends_with_the_training_of_the_others(connect, rows):
    others = Others(ends_at=3)
    connect(others)
    history = small_model().fit(*rows, batch_size=8, epochs=9, verbose=0, callbacks=[LocalSGD(every=3)])
    assert others.calls == ["join", (3, False), (3, False)]
    assert len(history.epoch) == 1


@pytest.mark.slow
def test_all_weights_take_part_but_integers(others, rows):
    model = small_model()
    model.fit(*rows, batch_size=8, verbose=0, callbacks=[DiLoCo(every=5)])
    assert others.settings.trained == sum(int(np.prod(each.shape)) for each in model.trainable_weights)
    assert len(others.settings.shapes) == len(model.trainable_weights) + 2  # BatchNorm's mean and variance
    assert others.settings.half


@pytest.mark.slow
def test_local_sgd_on_one_worker_changes_nothing(rows):
    weights = []
    for callbacks in ([], [LocalSGD(every=2)]):
        keras.utils.set_random_seed(1)
        model = small_model()
        model.fit(*rows, batch_size=8, verbose=0, shuffle=False, callbacks=callbacks)
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_more_workers_than_there_are_are_refused_at_once(others, rows):
    with pytest.raises(SpecError, match="min_workers=3: expected at most the number of workers, 2"):
        small_model().fit(*rows, verbose=0, callbacks=[DiLoCo(min_workers=3)])


@pytest.mark.deep
def test_a_process_that_is_no_node_is_warned_of(rows, caplog):
    small_model().fit(*rows, verbose=0, callbacks=[LocalSGD()])
    assert "LocalSGD: this process is no node of a cluster" in caplog.text


def test_a_model_of_a_strategy_of_several_workers_is_refused(rows):
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
    with pytest.raises(SpecError, match=r"DiLoCo averages models .* belongs to a \w+Strategy"):
        model.fit(*rows, verbose=0, callbacks=[DiLoCo()])


@pytest.mark.deep
def test_a_weight_that_is_not_finite_is_named(rows):
    model = small_model()
    model.compile(keras.optimizers.SGD(1e30), "mse")
    with pytest.raises(ClusterError, match=r"the weight '.+' on this worker is not finite after 2 steps"):
        model.fit(*rows, epochs=9, verbose=0, callbacks=[DiLoCo(every=2)])


def test_a_round_without_a_step_before_it_moves_no_weight():
    """A round before a validation may follow one that was due by its steps."""
    settings = round_state.RoundSettings(((2,), (1,)), 2, 0.7, 0.9, half=False, min_workers=1, timeout=60.0)
    shared = round_state.outer_step(
        settings, round_state.first_shared(settings, np.zeros(3, np.float32), 0), np.ones(3, np.float32), 1
    )
    again = round_state.outer_step(settings, shared, np.zeros(3, np.float32), 2)
    assert again.version == 2
    np.testing.assert_array_equal(again.weights, shared.weights)
    np.testing.assert_array_equal(again.momentum, shared.momentum)
