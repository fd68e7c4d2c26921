"""From a URL to the adapter of its file system, with the credentials that Hadoop's settings have for it."""

from collections.abc import Callable, Mapping
from functools import lru_cache

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tensorflowonspark.errors import StorageError
from tensorflowonspark.storage import objects
from tensorflowonspark.storage.hadoop import settings
from tensorflowonspark.storage.hdfs import hdfs

__all__ = ["file_system", "is_local"]

_Connect = Callable[[str, str, Mapping[str, str]], fsspec.AbstractFileSystem]
_ADAPTERS: dict[str, _Connect] = {
    **dict.fromkeys(("hdfs", "viewfs"), hdfs),
    **dict.fromkeys(("s3", "s3a", "s3n"), objects.s3),
    **dict.fromkeys(("gs", "gcs"), objects.gcs),
    **dict.fromkeys(("abfs", "abfss"), objects.abfs),
}


def file_system(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the adapter of a path's file system, and the path within it.

    Parameters
    ----------
    path : str
        A URL, or a path of this machine.

    Raises
    ------
    StorageError
        If what the file system needs is not installed, or not known.

    Examples
    --------
    >>> file_system("memory://folder/file")[1]
    '/folder/file'
    """
    scheme, separator, rest = path.partition("://")
    if not separator or scheme not in _ADAPTERS:
        try:
            files, within = fsspec.core.url_to_fs(path)
        except (ImportError, ValueError) as error:
            raise StorageError(f"{path}: fsspec can't open this URL: {error}") from error
        return files, within
    authority, _, within = rest.partition("/")
    files = _connected(scheme, authority, frozenset(settings().items()))
    if _ADAPTERS[scheme] is hdfs:
        return files, f"/{within}"
    return files, f"{authority.partition('@')[0]}/{within}"  # of Azure's "container@account" the container


def is_local(files: fsspec.AbstractFileSystem) -> bool:
    """Whether a file system is this machine's own."""
    return isinstance(files, LocalFileSystem)


@lru_cache(maxsize=16)
def _connected(scheme: str, authority: str, known: frozenset[tuple[str, str]]) -> fsspec.AbstractFileSystem:
    return _ADAPTERS[scheme](scheme, authority, dict(known))
