"""Paths and files, wherever they are: the only file that knows file systems.

A path is one of this machine, or a URL of any file system that fsspec has an adapter for.
"""

import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import fsspec

__all__ = ["copy", "fetch", "file_system", "publish", "remove"]


def file_system(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system that a path is on, and the path within it."""
    files, within = fsspec.core.url_to_fs(path)
    return files, within


def publish(path: str, write: Callable[[str], None], scratch_directory: str | None = None) -> None:
    """Write a file or directory locally, then put it in place of `path` as a whole: readers never see half of it.

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
    files, target = fsspec.core.url_to_fs(path)
    target = target.rstrip("/")
    name = PurePosixPath(target).name
    with tempfile.TemporaryDirectory(prefix="tfos-", dir=scratch_directory) as scratch:
        local = Path(scratch) / name
        write(str(local))
        parent = str(PurePosixPath(target).parent)
        files.makedirs(parent, exist_ok=True)
        # Beside the target, so that the last step is a rename, not a copy, where the file system has renames.
        staged = f"{parent}/.{name}.{uuid.uuid4().hex}"
        _put(files, local, staged)
        if files.exists(target):
            files.rm(target, recursive=True)
        files.mv(staged, target, recursive=local.is_dir())


def _put(files: fsspec.AbstractFileSystem, local: Path, remote: str) -> None:
    if "file" in files.protocol:
        if local.is_dir():
            shutil.copytree(local, remote)
        else:
            shutil.copyfile(local, remote)
    else:
        files.put(str(local), remote, recursive=local.is_dir())


def fetch(path: str, local: str) -> bool:
    """Copy a directory or a file here, if it is there; return whether it was.

    Parameters
    ----------
    path : str
        What to copy.
    local : str
        Where it goes: a directory's contents into this directory, which is made; a file to this path.
    """
    files, source = fsspec.core.url_to_fs(path)
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
    files, target = fsspec.core.url_to_fs(path)
    if files.exists(target):
        files.rm(target, recursive=True)


def copy(source: str, target: str) -> None:
    """Copy a directory of this machine to another path of it."""
    shutil.copytree(source, target)
