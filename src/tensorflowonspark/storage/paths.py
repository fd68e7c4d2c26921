"""Paths of the default file system: what a path without a scheme means to Hadoop."""

import re

from tensorflowonspark.storage.hadoop import hadoop_user, settings

__all__ = ["absolute_path", "default_fs"]

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]+:(//|:)")  # with a second colon it is one of fsspec's chains
_WITH_HOMES = ("hdfs://", "viewfs://")


def default_fs() -> str:
    """Return the URL of the file system that Hadoop takes by default, without a slash at its end."""
    return _without_root(settings().get("fs.defaultFS", "")) or "file://"


def absolute_path(path: str, working_dir: str, default: str | None = None) -> str:
    """Return a path as a URL of the default file system, unless it has a scheme already.

    Parameters
    ----------
    path : str
        A URL, which stays as it is; an absolute path; or a relative one, which begins at the user's home on HDFS and
        at `working_dir` on this machine.
    working_dir : str
        Where relative paths of this machine begin.
    default : str, optional
        The default file system; that of the settings if none is given.

    Examples
    --------
    >>> absolute_path("/data/train", "/work", "hdfs://name:8020")
    'hdfs://name:8020/data/train'
    >>> absolute_path("model", "/work", "file://")
    'file:///work/model'
    """
    if _URL.match(path):
        return path
    root = default_fs() if default is None else default
    if path.startswith("/"):
        return f"{root}{path}"
    if root.startswith(_WITH_HOMES):
        return f"{root}/user/{hadoop_user()}/{path}"
    return f"{root}{working_dir}/{path}" if root.startswith("file:") else f"{root}/{path}"


def _without_root(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rstrip('/')}"
