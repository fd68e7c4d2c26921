"""Callbacks of a training that resumes remember what those of an unbroken one do."""

import csv

import numpy as np
import pytest

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras import callback_state, resuming_callback
from tensorflowonspark.node.checkpoint.checkpoints import Checkpoints
from tensorflowonspark.node.checkpoint.saving import SavingNode
from tensorflowonspark.node.checkpoint.writer import SavePolicy

VAL_LOSSES = [5.0, 3.0, 4.0, 4.0, 4.0, 2.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0]  # the sixth is the best


@pytest.fixture(params=["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
def keras(request, monkeypatch):
    """Return Keras 3 or tf_keras, of which the checkpoint's callback is then."""
    keras = pytest.importorskip(request.param)
    monkeypatch.setattr(resuming_callback, "callbacks_module", lambda: keras.callbacks)
    return keras


class _Interrupted(Exception):
    pass


def fit(keras, folder, directory=None, stop_before=None, patience=4):
    """Fit with every callback that remembers something, from the checkpoint in `directory`; return what is compared."""
    folder.mkdir(exist_ok=True)
    rates, began = [], []

    class First(keras.callbacks.Callback):
        """Gives each epoch its loss of validation, and ends the process, as it were, before one."""

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == stop_before:
                raise _Interrupted
            began.append(epoch)

        def on_epoch_end(self, epoch, logs=None):
            logs["val_loss"] = VAL_LOSSES[epoch]
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    class Own(keras.callbacks.Callback):
        """Is not Keras's."""

        def __init__(self):
            super().__init__()
            self.mean, self.seen = np.zeros(2, "f4"), []

        def on_epoch_end(self, epoch, logs=None):
            self.mean = 0.9 * self.mean + epoch
            self.seen.append({"epoch": epoch, "loss": logs["val_loss"]})

        def get_state(self):
            return {"mean": self.mean, "seen": self.seen}

        def set_state(self, state):
            self.mean, self.seen = state["mean"], state["seen"]

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.build((None, 3))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.sin(np.arange(30.0, dtype="f4").reshape(10, 3))
    callbacks = [
        First(),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        keras.callbacks.ModelCheckpoint(str(folder / "best.weights.h5"), save_best_only=True, save_weights_only=True),
        keras.callbacks.ModelCheckpoint(str(folder / "fifth-{epoch}-{batch}.weights.h5"), save_weights_only=True,
                                        save_freq=5),
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=2),
        own := Own(),
        keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True),
    ]  # fmt: skip
    if directory is not None:  # in the middle: it is called after those that follow, and Keras's History
        callbacks.insert(3, Checkpoints(str(directory), SavePolicy(2), SavingNode("worker:0")).callback())
    history = model.fit(
        x, x.sum(1), batch_size=5, epochs=len(VAL_LOSSES), callbacks=callbacks, shuffle=False, verbose=0
    )
    with (folder / "log.csv").open() as file:
        lines = [line["epoch"] for line in csv.DictReader(file)]
    found = {
        "epochs": history.epoch,
        "history": history.history,
        "lines": lines,
        "seen": own.seen,
        "arrays": [own.mean, *model.get_weights()],
        "files": sorted(each.name for each in folder.iterdir() if "fifth" in each.name),
    }
    model.load_weights(str(folder / "best.weights.h5"))
    found["arrays"] += model.get_weights()
    return found, began, rates


def assert_same(one, other):
    for name in set(one) - {"arrays"}:
        assert one[name] == other[name], name
    for mine, theirs in zip(one["arrays"], other["arrays"], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.deep
def test_callbacks_go_on_as_in_an_unbroken_training(keras, tmp_path):
    unbroken, _, rates = fit(keras, tmp_path / "unbroken")
    assert unbroken["epochs"] == list(range(10))  # four after the best
    for stop in (4, 9):
        folder, directory = tmp_path / str(stop), tmp_path / f"{stop}-checkpoints"
        with pytest.raises(_Interrupted):
            fit(keras, folder, directory, stop_before=stop)
        again, began, rates_again = fit(keras, folder, directory)
        assert began == list(range(stop, 10))
        assert rates_again == rates[stop:]
        assert_same(again, unbroken)
    again, began, _ = fit(keras, folder, directory)  # it has ended
    assert began == []
    assert_same(again, unbroken)
    again, began, _ = fit(keras, folder, directory, patience=5)  # the program's settings count
    assert began == [10]


@pytest.mark.slow
def test_a_checkpoint_without_states_resumes_too(keras, tmp_path, monkeypatch):
    with monkeypatch.context() as earlier, pytest.raises(_Interrupted):
        earlier.setattr(callback_state.CallbackStates, "write", lambda *_: None)
        fit(keras, tmp_path / "files", tmp_path / "checkpoints", stop_before=2)
    found, began, _ = fit(keras, tmp_path / "files", tmp_path / "checkpoints")
    assert began == found["epochs"] == list(range(2, 10))


def test_a_state_that_cannot_be_kept_is_refused_before_the_first_step(keras, tmp_path):
    class Own(keras.callbacks.Callback):
        def get_state(self):
            return {"rows": {1, 2}}

        def set_state(self, state):
            pass

    states = callback_state.CallbackStates([Own()])
    with pytest.raises(SpecError, match="the state of the callback Own holds a set, which a checkpoint can't keep"):
        states.check()


def test_every_kind_of_value_comes_back(tmp_path):
    import tensorflow as tf

    class Own:
        def __init__(self, state):
            self.state = state

        def get_state(self):
            return self.state

        def set_state(self, state):
            self.state = state

    half = tf.cast([1.5, -2.0], tf.bfloat16).numpy()
    kept = {"none": None, "pair": (1, "a"), "deep": [[True], {"x": float("inf")}], "number": np.float32(0.1)}
    arrays = {"half": half, "empty": np.zeros((0, 3)), "scalar": np.array(7), "whole": np.array([2**62 + 1])}
    callback_state.CallbackStates([Own({**kept, **arrays})]).write(str(tmp_path))
    states = callback_state.CallbackStates([restored := Own(None)])
    states.read(str(tmp_path), "/ckpt")
    states.set()
    for name, value in arrays.items():
        assert restored.state[name].dtype == value.dtype
        np.testing.assert_array_equal(restored.state[name], value)
    assert {name: restored.state[name] for name in kept} == {**kept, "number": float(np.float32(0.1))}


NO_STATE = {  # what an epoch begins with, settings that take their form late, and open files
    "_current_epoch", "_write_filepath", "monitor_op", "min_delta", "csv_file", "writer", "keys", "_writers",
    "_prev_summary_state", "_epoch_start_time", "_train_accumulated_time", "_batch_start_time",
    "_previous_epoch_iterations", "_should_write_train_graph", "_train_step",
}  # fmt: skip


@pytest.mark.deep
def test_each_attribute_that_an_epoch_changes_is_kept(keras, tmp_path):
    """Go through all callbacks of the installed Keras."""
    callbacks = [
        keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=3),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.EarlyStopping("loss", restore_best_weights=True, patience=9),
        keras.callbacks.History(),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "{batch}.weights.h5"), "loss", save_freq=3, save_best_only=True,
                                        save_weights_only=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=1e9, cooldown=2),
        keras.callbacks.TensorBoard(str(tmp_path / "board"), update_freq=1),
        keras.callbacks.TerminateOnNaN(),
    ]  # fmt: skip
    if swapping := getattr(keras.callbacks, "SwapEMAWeights", None):
        callbacks.append(swapping(swap_on_epoch=True))
    stateless = {"Callback", "CallbackList", "LambdaCallback", "ProgbarLogger", "RemoteMonitor"}
    of_other_kinds = {"BaseLogger", "OrbaxCheckpoint", "SidecarEvaluatorModelExport"}
    known = {type(each).__name__ for each in callbacks} | stateless | of_other_kinds
    assert {each for each in dir(keras.callbacks) if each[0].isupper()} <= known

    def snapshot():
        return [{key: repr(value) for key, value in vars(each).items()} for each in callbacks]

    snapshots = []
    looking = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: epoch or snapshots.append(snapshot()),
        on_epoch_end=lambda epoch, logs: snapshots.append(snapshot()),
    )
    model = keras.Sequential([keras.layers.Dense(1)])
    model.build((None, 3))
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
    x = np.sin(np.arange(60.0, dtype="f4").reshape(20, 3))
    model.fit(x, x.sum(1), batch_size=5, epochs=3, verbose=0, callbacks=[*callbacks, looking])
    began, *ended = snapshots
    for each, before, *after in zip(callbacks, began, *ended, strict=True):
        changed = {key for one in after for key in one if one[key] != before.get(key)}
        bases = callback_state._keras_names(each)
        assert changed - NO_STATE <= {name for base in bases for name in callback_state.REMEMBERED.get(base, ())}, each
