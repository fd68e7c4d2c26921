"""Files and directories moved between this machine and any file system, and logs kept in sync."""

import io
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from threading import Event, Lock, Thread

import fsspec

from tensorflowonspark.errors import StorageError
from tensorflowonspark.storage.file_systems import file_system, is_local, is_object_store

__all__ = ["PIECE_BYTES", "DirectorySync", "fetch", "publish", "remove"]

PIECE_BYTES = 1 << 22
_STACK = "\\n\\tat "  # as it stands, escaped, in hdfs-native's errors
_OPENED_FIRST = ("saved_model.pb", "checkpoint")  # a SavedModel and a checkpoint's directory begin with these


def publish(path: str, write: Callable[[str], None], scratch_directory: str | None = None) -> None:
    """Write a file or directory locally, then put it in place of `path` as a whole: readers never see half of it.

    What is new is uploaded beside the old, which then makes room by a rename. Object stores have no rename: there a
    file is replaced at once, and a directory file by file, the one that readers open first (``saved_model.pb``,
    ``checkpoint``) being gone from the beginning and coming last. So readers find nothing meanwhile, but never a
    mixture.

    Parameters
    ----------
    path : str
        Where it goes; what stood there is replaced.
    write : callable
        Writes the file or directory to the local path it is given, whose last part is that of `path`.
    scratch_directory : str, optional
        Where it is written first; by default where this machine has its temporary files.

    Examples
    --------
    >>> import os
    >>> folder = tempfile.mkdtemp()
    >>> publish(f"{folder}/note.txt", lambda local: Path(local).write_text("hello") and None)
    >>> os.listdir(folder)
    ['note.txt']
    """
    files, target = file_system(path)
    target = target.rstrip("/")
    name = PurePosixPath(target).name
    with tempfile.TemporaryDirectory(prefix="tfos-", dir=scratch_directory) as scratch:
        local = Path(scratch) / name
        write(str(local))
        with _named(path):
            if is_object_store(files):
                _replace_objects(files, local, target)
            else:
                _replace(files, local, target)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Say which path an error of hdfs-native or pyarrow is about, in a sentence without the name node's own stack."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not isinstance(error, RuntimeError) and type(error) is not OSError:
            raise  # FileNotFoundError and the like say it themselves
        raise StorageError(f"{path}: {str(error).partition(_STACK)[0]}") from error


def _replace(files: fsspec.AbstractFileSystem, local: Path, target: str) -> None:
    parent, name = PurePosixPath(target).parent, PurePosixPath(target).name
    # Beside the target, so that the last step is a rename, not a copy.
    staged, old = (f"{parent}/.{name}.{uuid.uuid4().hex}" for _ in range(2))
    files.makedirs(str(parent), exist_ok=True)
    with _removed_on_error(files, staged):
        _put(files, local, staged)
        if local.is_file() and not files.isdir(target):
            files.mv(staged, target, overwrite=True)
            return
        replaces = files.exists(target)
        if replaces:
            files.mv(target, old, recursive=True)
        try:
            files.mv(staged, target, recursive=True)
        except BaseException:
            if replaces:
                files.mv(old, target, recursive=True)
            raise
    if replaces:
        files.rm(old, recursive=True)


@contextmanager
def _removed_on_error(files: fsspec.AbstractFileSystem, path: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            files.rm(path, recursive=True)
        raise


def _replace_objects(files: fsspec.AbstractFileSystem, local: Path, target: str) -> None:
    if local.is_file():
        if files.isdir(target):
            files.rm(target, recursive=True)
        _upload(files, local, target)
        return
    new = {f"{target}/{relative}": local / relative for relative in _files(local)}
    old = set(files.find(target)) if files.exists(target) else set()
    for place in old:
        if PurePosixPath(place).name in _OPENED_FIRST:
            files.rm_file(place)
    for place, source in new.items():
        _upload(files, source, place)
    for place in old - set(new):
        with suppress(FileNotFoundError):
            files.rm_file(place)


def _files(local: Path) -> list[str]:
    """Return the files below a directory, by their paths in it, in the order in which they are to be uploaded."""
    found = [path.relative_to(local) for path in local.rglob("*") if path.is_file()]
    return [str(path) for path in sorted(found, key=lambda path: (path.name in _OPENED_FIRST, path))]


def _put(files: fsspec.AbstractFileSystem, local: Path, remote: str) -> None:
    if local.is_file():
        _upload(files, local, remote)
        return
    files.makedirs(remote)
    for folder in sorted(path for path in local.rglob("*") if path.is_dir()):
        files.makedirs(f"{remote}/{folder.relative_to(local)}", exist_ok=True)
    for relative in _files(local):
        _upload(files, local / relative, f"{remote}/{relative}")


def _upload(files: fsspec.AbstractFileSystem, local: Path, remote: str) -> None:
    # fsspec's put_file makes folders first, which leaves empty objects in a store.
    with local.open("rb") as source, files.open(remote, "wb") as sink:
        shutil.copyfileobj(source, sink, PIECE_BYTES)


def fetch(path: str, local: str) -> bool:
    """Copy a directory or a file here, if it is there; return whether it was.

    Parameters
    ----------
    path : str
        What to copy.
    local : str
        Where it goes: a directory's contents into this directory, which is made; a file to this path.
    """
    files, source = file_system(path)
    source = source.rstrip("/")
    with _named(path):
        if not files.exists(source):
            return False
        if not files.isdir(source):
            files.get_file(source, local)
            return True
        Path(local).mkdir(parents=True, exist_ok=True)
        for found in files.find(source):
            place = Path(local) / PurePosixPath(found).relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(found, str(place))
    return True


def remove(path: str) -> None:
    """Remove a file or a directory, if it is there."""
    files, target = file_system(path)
    with _named(path):
        if files.exists(target):
            files.rm(target, recursive=True)


_AGAIN_SECONDS = 5.0


class DirectorySync:
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
