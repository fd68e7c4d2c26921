"""Files of records: the files of a path, the partition columns of directories, and the division among tasks."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa

from tensorflowonspark import storage
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.tfrecords.partitions import partition_value

__all__ = ["NULL_DIRECTORY", "File", "Split", "check_unchanged", "constant", "directory_of", "find", "plan"]

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"  # the value of Hive and Spark for a null
_PARTITIONS = 32  # at least, unless splits would be smaller than the next value
_SMALLEST_SPLIT_BYTES = 32 << 20  # reading this takes about as long as starting a task
_OPENING_BYTES = 1 << 20  # the cost of opening a file, in bytes that could be read meanwhile


@dataclass(frozen=True)
class File:
    """A file of records.

    Attributes
    ----------
    path : str
        The `fsspec` URL, or a local path.
    size : int
        In bytes.
    modified : float
        In seconds since 1970; 0 if the file system does not report it.
    values : tuple of (str, str or None)
        The partition columns in the names of its directories, as in ``day=7``.
    """

    path: str
    size: int
    modified: float
    values: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class Split:
    """The records of a file whose frames begin in ``[begin, end)``, in bytes."""

    file: File
    begin: int
    end: int


def find(paths: Sequence[str], recursive: bool = False) -> list[File]:
    """Return the files of some paths, in the order of their names.

    Parameters
    ----------
    paths : sequence of str
        Files, directories or wildcards. In a directory, names that begin with ``_`` or ``.`` are ignored, and so are
        directories that are not named ``column=value``, unless `recursive`.
    recursive : bool
        Whether to return all files below a directory, without partition columns.

    Returns
    -------
    list of File
        Without duplicates.

    Raises
    ------
    SpecError
        If a path does not exist.
    """
    found: dict[str, File] = {}
    for path in paths:
        files, within = storage.file_system(path)
        roots = sorted(files.glob(within)) if any(each in within for each in "*?[") else [within.rstrip("/") or "/"]
        if not roots or not all(files.exists(root) for root in roots):
            raise SpecError(f"there is no file or directory {path!r}")
        for root in roots:
            for info in _listed(files, root):
                if info["type"] != "file":
                    continue
                name = str(info["name"])
                folders = PurePosixPath(name[len(root) :].lstrip("/")).parts[:-1]
                values = tuple(_named(each) for each in folders if "=" in each)
                if any(each[0] in "_." for each in folders) or (len(values) < len(folders) and not recursive):
                    continue
                if name != root and PurePosixPath(name).name[0] in "_.":
                    continue
                url = str(files.unstrip_protocol(name)) if "file" not in files.protocol else name
                found[url] = File(url, int(info["size"] or 0), _modified(info), () if recursive else values)
    return [found[url] for url in sorted(found)]


def check_unchanged(file: File) -> None:
    """Check that a file is as it was when it was listed.

    Raises
    ------
    FeedError
        If its size or its time differs, or it is gone.
    """
    files, path = storage.file_system(file.path)
    files.invalidate_cache(path)
    try:
        info = files.info(path)
    except OSError as error:
        raise FeedError(f"{file.path} can't be read any more: {error}") from error
    size, modified = int(info["size"] or 0), _modified(info)
    if size != file.size:
        raise FeedError(f"{file.path} had {file.size} bytes when it was listed, and has {size}: it has changed since")
    # An object store may list whole seconds, and report an object's own time with fractions of them, or vice versa.
    in_seconds = modified.is_integer() or file.modified.is_integer()
    if (int(modified) != int(file.modified)) if in_seconds else (modified != file.modified):
        raise FeedError(f"{file.path} was written again after it was listed: name files that do not change")


def _listed(files: Any, root: str) -> Iterable[dict[str, Any]]:
    files.invalidate_cache()
    return files.find(root, detail=True).values()  # type: ignore[no-any-return]


def _modified(info: dict[str, Any]) -> float:
    for key in ("mtime", "LastModified", "last_modified", "modification_time", "created"):
        when = info.get(key)
        if when is not None:
            return float(when.timestamp() if hasattr(when, "timestamp") else when)
    return 0.0


def _named(folder: str) -> tuple[str, str | None]:
    name, _, value = folder.partition("=")
    return unquote(name), None if value == NULL_DIRECTORY else unquote(value)


def directory_of(column: str, value: str | None) -> str:
    """Return the name of the directory of rows with a value in a partition column, as in Spark and Hive.

    Examples
    --------
    >>> directory_of("day", "7/11"), directory_of("day", None)
    ('day=7%2F11', 'day=__HIVE_DEFAULT_PARTITION__')
    """
    safe = " -_.,()@+~$!&;"
    return f"{quote(column, safe=safe)}={NULL_DIRECTORY if value in (None, '') else quote(value, safe=safe)}"


def constant(value: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """Return a partition column for some rows of a directory.

    Examples
    --------
    >>> constant("7", pa.int32(), 2).to_pylist()
    [7, 7]
    """
    return pa.array([partition_value(value, kind)], kind).take(pa.array(np.zeros(rows, np.int64)))


def plan(files: Sequence[File], split_bytes: int) -> list[list[Split]]:
    """Return the splits that each task reads: parts of long files, or several small files.

    Parameters
    ----------
    files : sequence of File
        The files; empty ones are left out.
    split_bytes : int
        The most bytes for a task, except for files that can't be divided. Small data have smaller tasks.

    Returns
    -------
    list of list of Split
        One list for each task.
    """
    files = [file for file in files if file.size]
    total = sum(file.size + _OPENING_BYTES for file in files)
    size = min(split_bytes, max(_SMALLEST_SPLIT_BYTES, total // _PARTITIONS))
    splits = [split for file in files for split in _parts(file, size)]
    tasks: list[list[Split]] = []
    room = 0
    for split in sorted(splits, key=lambda each: each.begin - each.end):
        cost = split.end - split.begin + _OPENING_BYTES
        if cost > room or not tasks:
            tasks.append([])
            room = size
        tasks[-1].append(split)
        room -= cost
    return tasks


def _parts(file: File, size: int) -> Iterator[Split]:
    count = 1 if re.search(r"\.(gz|gzip|zlib|deflate)$", file.path) else max(1, round(file.size / size))
    bounds = [file.size * part // count for part in range(count + 1)]
    for begin, end in pairwise(bounds):
        yield Split(file, begin, end)
