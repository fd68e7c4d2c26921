"""The callbacks that each worker of a strategy runs."""

from types import SimpleNamespace

import keras
import pytest

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.callbacks import callbacks_of_worker


def _of(name):
    """Return a callback without its constructor, for which Orbax may not be installed."""
    if not hasattr(keras.callbacks, name):
        pytest.skip("this Keras has none")
    return object.__new__(getattr(keras.callbacks, name))


def _model(*, is_chief):
    return SimpleNamespace(distribute_strategy=SimpleNamespace(extended=SimpleNamespace(should_checkpoint=is_chief)))


@pytest.mark.parametrize("name", ["BackupAndRestore", "CSVLogger", "ModelCheckpoint", "TensorBoard"])
@pytest.mark.parametrize("is_chief", [True, False])
@pytest.mark.parametrize(
    "given", [lambda one: one, lambda one: [one], lambda one: [None, [one]], lambda one: {"a": one}]
)
def test_callbacks_that_write_run_on_the_chief(name, is_chief, given):
    """Keras takes nested ones too."""
    callback = _of(name)
    callback.backup_dir = "backup"
    assert (callback in callbacks_of_worker(_model(is_chief=is_chief), given(callback))) == is_chief


@pytest.mark.parametrize("is_chief", [True, False])
def test_a_callback_that_saves_what_each_worker_has_for_itself_is_refused_on_all(is_chief):
    with pytest.raises(SpecError, match=r"^OrbaxCheckpoint on several workers needs Keras on JAX"):
        callbacks_of_worker(_model(is_chief=is_chief), [_of("OrbaxCheckpoint")])
