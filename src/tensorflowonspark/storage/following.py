"""Directories whose files only grow, as TensorBoard's logs do, kept alike in two places."""

import io
import shutil
from contextlib import suppress
from pathlib import PurePosixPath
from threading import Event, Lock, Thread

from tensorflowonspark.storage.moving import PIECE_BYTES
from tensorflowonspark.storage.systems import file_system, is_local

__all__ = ["Following"]

_AGAIN_SECONDS = 5.0


class Following:
    """Copies what is new in a directory to another one every few seconds, in a thread, until it is closed.

    Parameters
    ----------
    source : str
        A path or URL; it need not be there yet.
    target : str
        Where the files go. What it has of a file on this machine stays, and the rest is added; elsewhere a file that
        has grown is written anew.
    """

    def __init__(self, source: str, target: str) -> None:
        self._source = source
        self._target = target
        self._copied: dict[str, int] = {}  # sizes when they were copied
        self._lock = Lock()
        self._over = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy a last time, and end.

        Raises
        ------
        OSError
            If that fails.
        """
        self._over.set()
        self._thread.join()
        self.copy()

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(OSError, RuntimeError):  # it is tried again; the last time says what is wrong
                self.copy()
            self._over.wait(_AGAIN_SECONDS)

    def copy(self) -> None:
        """Copy what is new now."""
        with self._lock:
            self._copy()

    def _copy(self) -> None:
        files, within = file_system(self._source)
        within = within.rstrip("/")
        if not files.exists(within):
            return
        sink, place = file_system(self._target)
        append = is_local(sink)
        for path, info in files.find(within, detail=True).items():
            name = str(PurePosixPath(path).relative_to(within))
            if info["size"] == self._copied.get(name):
                continue
            goal = f"{place.rstrip('/')}/{name}"
            sink.makedirs(str(PurePosixPath(goal).parent), exist_ok=True)
            with files.open(path, "rb") as old, sink.open(goal, "ab" if append else "wb") as new:
                if append:
                    old.seek(new.seek(0, io.SEEK_END))
                shutil.copyfileobj(old, new, PIECE_BYTES)
            self._copied[name] = info["size"]
