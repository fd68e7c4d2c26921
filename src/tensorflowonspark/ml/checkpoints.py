"""Keras's own back-up of a training's state, kept on any file system."""

import tempfile
from importlib import import_module
from typing import Any

from tensorflowonspark import storage

__all__ = ["backup"]


def backup(library: str, directory: str, scratch: str) -> Any:
    """Return a ``BackupAndRestore`` callback whose files are copied to a directory after each epoch.

    Training that starts finds the last complete copy there; one that ends removes it.

    Parameters
    ----------
    library : str
        ``keras`` or ``tf_keras``.
    directory : str
        A path, or a URL of any file system.
    scratch : str
        A directory of this machine for the files that Keras writes.
    """
    base: Any = import_module(library).callbacks.BackupAndRestore
    local = tempfile.mkdtemp(prefix="tfos-", dir=scratch or None)

    class Backup(base):
        def on_train_begin(self, logs: Any = None) -> None:
            storage.fetch(directory, local)
            super().on_train_begin(logs)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            storage.publish(directory, lambda place: storage.copy(local, place))

        def on_train_end(self, logs: Any = None) -> None:
            super().on_train_end(logs)
            storage.remove(directory)
            storage.remove(local)

    return Backup(local)
