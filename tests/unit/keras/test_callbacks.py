"""The callbacks that each worker of a strategy runs."""

from types import SimpleNamespace

import keras
import pytest

from tensorflowonspark.keras.callbacks import callbacks_of_worker


@pytest.mark.parametrize("name", ["BackupAndRestore", "CSVLogger", "ModelCheckpoint", "OrbaxCheckpoint", "TensorBoard"])
@pytest.mark.parametrize("is_chief", [True, False])
def test_callbacks_that_write_run_on_the_chief(name, is_chief):
    if not hasattr(keras.callbacks, name):
        pytest.skip("this Keras has none")
    callback = object.__new__(getattr(keras.callbacks, name))  # Orbax may not be installed
    callback.backup_dir = "backup"
    model = SimpleNamespace(distribute_strategy=SimpleNamespace(extended=SimpleNamespace(should_checkpoint=is_chief)))
    assert (callback in callbacks_of_worker(model, [callback])) == is_chief
