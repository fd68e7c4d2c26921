"""Transfer of files and directories between the local machine and any file system, once or continuously."""

import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Event, Lock, Thread

import fsspec

from tensorflowonspark.errors import StorageError
from tensorflowonspark.storage.file_systems import file_system, files_below, is_local, is_object_store
from tensorflowonspark.storage.random_writes import takes_random_writes

_COPY_BYTES = 4 << 20  # at once: shutil's 64 KiB would be many requests to a store
_STACK = "\\n\\tat "  # as it stands, escaped, in hdfs-native's errors
_OPENED_FIRST = ("saved_model.pb", "checkpoint")  # a SavedModel and a checkpoint's directory begin with these


def publish(
    path: str, write: Callable[[str], None], scratch_directory: str | None = None, *, replace: bool = True
) -> None:
    """Write a file or directory locally, then replace `path` with it atomically.

    The new version is uploaded beside the old one and renamed. Object stores have no rename: there a file is replaced
    by one upload, and a directory file by file. The file that readers open first (``saved_model.pb``, ``checkpoint``)
    is removed at the start and uploaded last, so that readers may find no version meanwhile, but never a mixture.

    Parameters
    ----------
    path : str
        The URL or local path to create or replace.
    write : callable
        Takes a local path, whose last part is that of `path`, and writes the file or directory there.
    scratch_directory : str, optional
        The local directory for the first copy; by default the system's directory for temporary files.
    replace : bool, optional
        Whether to replace a file that another process has published meanwhile; otherwise it stays. Of directories this
        makes no difference.

    Raises
    ------
    StorageError
        If the file system is not available, or refuses the upload.

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
                _replace_objects(files, local, target, replace=replace)
            else:
                _replace(files, local, target, replace=replace)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Raise errors of hdfs-native and pyarrow as a StorageError with the path, without the server's stack trace."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not isinstance(error, RuntimeError) and type(error) is not OSError:
            raise  # FileNotFoundError and the like name the path
        raise StorageError(f"{path}: {str(error).partition(_STACK)[0]}") from error


def _replace(files: fsspec.AbstractFileSystem, local: Path, target: str, *, replace: bool) -> None:
    parent, name = PurePosixPath(target).parent, PurePosixPath(target).name
    # Beside the target, so that the last step is a rename and not a copy.
    staged, old = (f"{parent}/.{name}.{uuid.uuid4().hex}" for _ in range(2))
    files.makedirs(str(parent), exist_ok=True)
    with _removed_on_error(files, staged):
        _put(files, local, staged)
        if local.is_file() and not files.isdir(target):
            if replace or not files.exists(target):
                files.mv(staged, target, overwrite=True)
            else:
                files.rm(staged)
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
        with suppress(Exception):  # the first error is the one to report
            files.rm(path, recursive=True)
        raise


def _replace_objects(files: fsspec.AbstractFileSystem, local: Path, target: str, *, replace: bool) -> None:
    if local.is_file():
        if files.isdir(target):
            files.rm(target, recursive=True)
        if not replace and files.exists(target):
            return
        _upload(files, local, target)
        return
    new = {f"{target}/{relative}": local / relative for relative in _files(local)}
    old = set(files.find(target)) if files.exists(target) else set()
    for remote in old:
        if PurePosixPath(remote).name in _OPENED_FIRST:
            files.rm_file(remote)
    for remote, source in new.items():
        _upload(files, source, remote)
    for remote in old - set(new):
        with suppress(FileNotFoundError):
            files.rm_file(remote)


def _files(local: Path) -> list[str]:
    """Return the relative paths of the files below a directory in the order of their upload."""
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
    # Not by fsspec's put_file, which makes folders: in a store they are empty objects.
    with local.open("rb") as source, files.open(remote, "wb") as sink:
        shutil.copyfileobj(source, sink, _COPY_BYTES)


def fetch(path: str, local: str) -> bool:
    """Copy a file or directory to the local machine, if it exists.

    Parameters
    ----------
    path : str
        The URL or path of the file or directory.
    local : str
        The local path of the copy: of a file itself, or of the directory for a directory's contents, which is created.

    Returns
    -------
    bool
        Whether it exists.

    Raises
    ------
    StorageError
        If the file system is not available, or refuses the download, or the name of a file leads out of the directory.

    Examples
    --------
    >>> folder = tempfile.mkdtemp()
    >>> publish("memory://folder/note.txt", lambda local: Path(local).write_text("hello") and None)
    >>> fetch("memory://folder/note.txt", f"{folder}/note.txt"), fetch("memory://folder/other.txt", folder)
    (True, False)
    >>> Path(folder, "note.txt").read_text()
    'hello'
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
        names = {found: _member(source, found) for found in files_below(files, source)}
        for found, name in names.items():
            target = Path(local, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(found, str(target))
    return True


def _member(directory: str, path: str) -> str:
    """Return the name of a file relative to its directory, as a file system lists it."""
    return check_member(directory, str(PurePosixPath(path).relative_to(directory)))


def check_member(directory: str, name: str) -> str:
    """Return the name of a file in a directory, which others may have written.

    Parameters
    ----------
    directory : str
        The URL or path that lists the file.
    name : str
        The file's name below it.

    Returns
    -------
    str
        The name.

    Raises
    ------
    StorageError
        If it leads out of the directory: an object store takes any name.

    Examples
    --------
    >>> check_member("s3a://bucket/model", "variables/one")
    'variables/one'
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise StorageError(f"{directory} lists a file named {name!r}, which leads out of it: remove that file")
    return name


def remove(path: str) -> None:
    """Remove a file or a directory with its contents, if it exists.

    Parameters
    ----------
    path : str
        The URL or path.

    Raises
    ------
    StorageError
        If the file system is not available, or refuses the removal.

    Examples
    --------
    >>> publish("memory://folder/note.txt", lambda local: Path(local).write_text("hello") and None)
    >>> remove("memory://folder")
    >>> file_system("memory://folder")[0].exists("/folder/note.txt")
    False
    """
    files, target = file_system(path)
    with _named(path):
        if files.exists(target):
            files.rm(target, recursive=True)


def make_private_directory(path: str) -> bool:
    """Create a directory that only its owner can read; return False on an object store, which has no such thing.

    Parameters
    ----------
    path : str
        The URL or path, which does not exist.

    Returns
    -------
    bool
        Whether only the owner can read it.

    Raises
    ------
    StorageError
        If the file system is not available, or refuses it.

    Examples
    --------
    >>> import tempfile
    >>> folder = f"{tempfile.mkdtemp()}/mine"
    >>> make_private_directory(folder)
    True
    >>> oct(Path(folder).stat().st_mode)
    '0o40700'
    """
    files, target = file_system(path)
    with _named(path):
        files.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
        if is_local(files):
            Path(target).mkdir(mode=0o700)
        elif not is_object_store(files):
            files.mkdir(target, permission=0o700)
    return not is_object_store(files)


_SYNC_SECONDS = 5.0  # between two copies, at least: TensorBoard looks for new events as often
_STAGED = re.compile(r"/\.[^/]+\.[0-9a-f]{32}(/|$)")  # what `publish` has not renamed yet
_SYNC_SHARE = 10  # times the duration of a copy, until the next one begins


class DirectorySync:
    """Copies new and grown files of a directory to another one, in a thread, until it is closed.

    The pause after a copy is ten times as long as the copy took, and five seconds at least. Copies on a local disk are
    extended by the new bytes; elsewhere they are replaced as a whole.

    Parameters
    ----------
    source : str
        A URL or path, which need not exist yet.
    target : str
        The URL or path of the copy.
    removes : bool, optional
        Whether a file that is removed is removed from the copy too.
    on_error : callable, optional
        Called with the error of each copy before the last one; the next one tries again.

    Examples
    --------
    >>> folder = tempfile.mkdtemp()
    >>> publish("memory://logs/events", lambda local: Path(local).write_text("one") and None)
    >>> sync = DirectorySync("memory://logs", folder)
    >>> sync.close()
    >>> Path(folder, "events").read_text()
    'one'
    """

    def __init__(
        self,
        source: str,
        target: str,
        *,
        removes: bool = False,
        on_error: Callable[[Exception], object] = lambda _: None,
    ) -> None:
        self._source, self._target = source, target
        self._removes, self._on_error = removes, on_error
        self._copied: dict[str, int] = {}  # sizes when they were copied
        self._error: Exception | None = None  # of the last copy
        self._lock = Lock()
        self._closed = Event()
        self._thread = Thread(target=self._run, daemon=True, name="directory-sync")
        self._thread.start()

    def close(self, seconds: float | None = None) -> None:
        """Copy a last time and stop the thread.

        Parameters
        ----------
        seconds : float, optional
            For the last copy; by default it is waited for.

        Raises
        ------
        OSError
            If the last copy fails, or takes longer.
        """
        self._closed.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError("no answer")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.is_set()
            began, self._error = time.monotonic(), None
            try:
                self.copy()
            except Exception as error:  # of any file system's client
                self._error = error
                if not is_last:
                    self._on_error(error)
            self._closed.wait(max(_SYNC_SECONDS, _SYNC_SHARE * (time.monotonic() - began)))

    def copy(self) -> None:
        """Copy all new and grown files now.

        Raises
        ------
        OSError
            If a file can't be read or written.
        StorageError
            If the name of a file leads out of the directory.
        """
        with self._lock:
            self._copy()

    def _copy(self) -> None:
        files, within = file_system(self._source)
        within = within.rstrip("/")
        if not files.exists(within):
            return
        sink, root = file_system(self._target)
        found = {_member(within, path): info["size"] for path, info in files.find(within, detail=True).items()}
        sizes = {name: size for name, size in found.items() if not _STAGED.search(f"/{name}")}
        write = os.symlink if is_local(files) else files.get_file  # what is here need not be copied for an upload
        extends = is_local(sink) and takes_random_writes(root)
        for name, size in sizes.items():
            if size == self._copied.get(name):
                continue
            if extends:
                _extend(files, f"{within}/{name}", Path(root, name))
            else:
                publish(f"{self._target.rstrip('/')}/{name}", partial(write, f"{within}/{name}"))
            self._copied[name] = size
        for name in self._copied.keys() - sizes.keys() if self._removes else ():
            remove(f"{self._target.rstrip('/')}/{name}")
            del self._copied[name]


def _extend(files: fsspec.AbstractFileSystem, path: str, copy: Path) -> None:
    """Append to a local copy what the file has more."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with files.open(path, "rb") as old, copy.open("ab") as new:
        old.seek(new.tell())
        shutil.copyfileobj(old, new, _COPY_BYTES)
