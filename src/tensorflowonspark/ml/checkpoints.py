"""Keras's own back-up of a training's state, kept on any file system."""

import tempfile
from pathlib import Path
from typing import Any

import keras

from tensorflowonspark import storage

__all__ = ["Backup"]


class Backup(keras.callbacks.BackupAndRestore):
    """Copies the state after each epoch to a directory; training that starts goes on from what is there.

    When training has come to its end, the directory is removed.

    Parameters
    ----------
    directory : str
        A path, or a URL of any file system.
    scratch : str
        A directory of this machine, for the files that Keras writes first.
    """

    def __init__(self, directory: str, scratch: str) -> None:
        self._directory = directory
        # A name alone: the directory is there only while it is used, so that a broken training leaves nothing.
        self._local = str(Path(scratch or tempfile.gettempdir(), f"tfos-backup-{id(self)}"))
        super().__init__(self._local)

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore what is there."""
        try:
            storage.fetch(self._directory, self._local)
            super().on_train_begin(logs)
        finally:
            storage.remove(self._local)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Back up."""
        try:
            super().on_epoch_end(epoch, logs)
            storage.publish(self._directory, lambda place: storage.copy(self._local, place))
        finally:
            storage.remove(self._local)

    def on_train_end(self, logs: Any = None) -> None:
        """Remove the back-up."""
        super().on_train_end(logs)
        storage.remove(self._directory)
