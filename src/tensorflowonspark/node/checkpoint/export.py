"""Export of trained models."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.keras.hooks import keras_backend
from tensorflowonspark.keras.jax.saving_alone import whole_model
from tensorflowonspark.run_manifest import BESIDE_EXPORT, IN_EXPORT


def is_of(package: str, model: Any) -> bool:
    """Return whether a model's class is from a package, ``keras`` (Keras 3) or ``tf_keras``, or derives from one."""
    return any(kind.__module__.split(".")[0] == package for kind in type(model).__mro__)


def save(model: Any, path: str) -> None:
    """Write a model to a local path: one file with the ending ``.keras`` or ``.h5``, otherwise a SavedModel."""
    if path.endswith((".keras", ".h5")):
        model.save(path)
    elif hasattr(model, "export"):
        with redirect_stdout(StringIO()):  # Keras prints the path, which is a temporary directory
            model.export(path)
    else:
        import tensorflow as tf

        tf.saved_model.save(model, path)


def export(
    model: Any,
    path: str,
    is_chief: bool,
    scratch: str | None,
    write: Callable[[Any, str], None] = save,
    manifest: Callable[[str], None] | None = None,
) -> None:
    """Write a trained model to any file system: the chief writes, and the others take part as TensorFlow needs.

    An existing file or directory is replaced. `write` gets a local path, whose last part is that of `path`. The
    `manifest`, if there is one, writes the run's to a local path: it is in the directory, or beside the file.
    """
    beside, is_file = f"{path.rstrip('/')}{BESIDE_EXPORT}", False

    def write_both(model: Any, local: str) -> None:
        nonlocal is_file
        write(model, local)
        is_file = Path(local).is_file()
        if is_file:
            storage.remove(beside)  # that of the model that is replaced
        elif manifest is not None:
            manifest(f"{local}/{IN_EXPORT}")

    _export(model, path, is_chief, scratch, write_both if is_chief else write)
    if is_file and manifest is not None:
        storage.publish(beside, manifest, scratch)


def _export(model: Any, path: str, is_chief: bool, scratch: str | None, write: Callable[[Any, str], None]) -> None:
    if divided := divided_layers(model):
        from tensorflowonspark.keras.embedding.table_export import send_rows, write_model

        if is_chief:
            storage.publish(path, lambda local: write_model(model, divided, local, write), scratch)
        else:
            send_rows(divided)
    elif keras_backend() == "jax" and is_of("keras", model):
        with whole_model(model):
            if is_chief:
                storage.publish(path, lambda local: write(model, local), scratch)
    elif is_chief:
        storage.publish(path, lambda local: write(model, local), scratch)
    elif not is_of("keras", model):  # TensorFlow reads some variables from all workers together
        with TemporaryDirectory(prefix="tfos-", dir=scratch) as unused:
            write(model, str(PurePosixPath(unused) / PurePosixPath(path).name))


def divided_layers(model: Any) -> list[Any]:
    """Return the layers of a model whose tables are divided among the workers, if the program has any."""
    if "tensorflowonspark.keras.embedding" not in sys.modules or not is_of("keras", model):
        return []
    from tensorflowonspark.keras.embedding.table_export import sharded_layers

    return sharded_layers(model)
