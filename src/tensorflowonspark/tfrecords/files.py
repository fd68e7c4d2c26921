"""Files of records: the files of a path, the partition columns of directories, and the division among tasks."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from tensorflowonspark import storage
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.storage.file_systems import files_below, matching
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.partitions import partition_value

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
class RecordSplit:
    """The records of a file whose frames begin in ``[begin, end)``, in bytes."""

    file: File
    begin: int
    end: int


def find(paths: Sequence[str], options: Options | None = None) -> list[File]:
    """Return the files of some paths that are not empty, in the order of their names, by the rules of Spark's sources.

    Parameters
    ----------
    paths : sequence of str
        Files, directories or wildcards (``*``, ``?``, ``[ab]``, ``{a,b}``). In a directory, names that begin with ``_``
        or ``.`` are ignored, except for ``_column=value``, and so are files that are being copied (``*._COPYING_``).
        Directories that are not named ``column=value`` are ignored too, unless some are or `recursive_file_lookup` is
        set.
    options : Options, optional
        Which of the files are wanted; by default the settings of Spark's session.

    Returns
    -------
    list of File
        Without duplicates.

    Raises
    ------
    SpecError
        If a path does not exist, or directories contradict each other.
    """
    options = options or Options.of({})
    found: dict[str, File] = {}
    names: dict[str, str] = {}  # of the partition columns, by what they are in another case
    for path in paths:
        files, within = storage.file_system(path)
        roots, wild = _roots(files, within)
        if not roots or not all(files.exists(root) for root in roots):
            raise SpecError(f"there is no file or directory {path!r}")
        for root in roots:
            listed = dict(_wanted(files, root, wild, options))
            for name, folders in _partitioned(listed, root, options).items():
                url = str(files.unstrip_protocol(name)) if "file" not in files.protocol else name
                values = tuple(_named(each, url) for each in folders)
                if not options.case_sensitive:
                    values = tuple((names.setdefault(each.lower(), each), value) for each, value in values)
                if len(dict(values)) < len(values):
                    raise SpecError(f"{url}: two of its directories name the same column")
                found[url] = File(url, int(listed[name]["size"]), _modified(listed[name]), values)
    return [found[url] for url in sorted(found)]


def _roots(files: Any, within: str) -> tuple[list[str], bool]:
    """Return the files and directories of a path, and whether it has wildcards."""
    patterns = _alternatives(within)
    if patterns == [within] and not any(each in within for each in "*?["):
        return [within.rstrip("/") or "/"], False
    return sorted({each.rstrip("/") for pattern in patterns for each in matching(files, pattern)}), True


def _alternatives(pattern: str) -> list[str]:
    """Return the wildcards that a wildcard of Hadoop stands for, in the notation of Python.

    Examples
    --------
    >>> _alternatives("day={1,2[^a]}")
    ['day=1', 'day=2[!a]']
    """
    if braces := re.search(r"\{([^{}]*)\}", pattern):
        before, after = pattern[: braces.start()], pattern[braces.end() :]
        return [each for choice in braces[1].split(",") for each in _alternatives(f"{before}{choice}{after}")]
    return [pattern.replace("[^", "[!")]


def _wanted(files: Any, root: str, wild: bool, options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the files at a file or below a directory that are neither hidden nor empty, as the options want them."""
    after, before = options.seconds("modified_after"), options.seconds("modified_before")
    globs = _alternatives(options.path_glob_filter or "*")
    for info in files_below(files, root).values():
        name = str(info["name"])
        inner = PurePosixPath(name[len(root) :].lstrip("/")).parts
        file = PurePosixPath(name).name
        if any(map(_is_hidden, (*inner, *[file][:wild]))):
            continue
        if info["type"] == "link":
            raise SpecError(f"{name} is a link to {os.path.realpath(name)}, which does not exist")
        if info["type"] != "file" or not info["size"]:
            continue  # in a store, a marker of a directory is an empty file
        if any(fnmatchcase(file, each) for each in globs) and _is_within(name, _modified(info), after, before):
            yield name, info


def _is_within(name: str, modified: float, after: float | None, before: float | None) -> bool:
    if not modified and (after is not None or before is not None):
        raise SpecError(f"the file system of {name} reports no times: leave out modifiedAfter and modifiedBefore")
    return (after is None or modified > after) and (before is None or modified < before)


def _partitioned(found: dict[str, Any], root: str, options: Options) -> dict[str, tuple[str, ...]]:
    """Return the files that are read, each with its directories ``column=value``."""
    if options.recursive_file_lookup:
        return dict.fromkeys(found, ())
    base = storage.file_system(options.base_path)[1].rstrip("/") if options.base_path else root.rstrip("/")
    if not f"{root}/".startswith(f"{base}/"):
        raise SpecError(f"option basePath={options.base_path!r} is not above {root}")
    folders = {name: PurePosixPath(name[len(base) :].lstrip("/")).parts[:-1] for name in found}
    inside: dict[str, tuple[str, ...]] = {}
    tops = set()  # what holds the directories of partitions
    for name, parts in folders.items():
        if ends := [place for place, each in enumerate(parts, 1) if "=" in each]:
            begin = next((place for place in range(ends[-1], 0, -1) if "=" not in parts[place - 1]), 0)
            inside[name] = parts[begin : ends[-1]]
            tops.add("/".join((base, *parts[:begin])))
    if len(tops) > 1:
        raise SpecError(f"there are partitions in {' and in '.join(sorted(tops)[:2])}: read each of them for itself")
    if not inside:
        return {name: () for name, parts in folders.items() if not parts}
    if (strays := sorted(found.keys() - inside)) and not options.ignore_invalid_partition_paths:
        raise SpecError(
            f"{strays[0]} is not in a directory of a partition, as {min(inside)} is: move it, read each of them for "
            "itself, or set ignoreInvalidPartitionPaths"
        )
    return inside


def _is_hidden(name: str) -> bool:
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


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


def _modified(info: dict[str, Any]) -> float:
    for key in ("mtime", "LastModified", "last_modified", "modification_time", "created"):
        when = info.get(key)
        if when is not None:
            return float(when.timestamp() if hasattr(when, "timestamp") else when)
    return 0.0


def _named(folder: str, path: str) -> tuple[str, str | None]:
    name, _, value = folder.partition("=")
    if not name or not value:
        raise SpecError(f"{path}: the directory {folder!r} has no name or no value; a null is {NULL_DIRECTORY}")
    return unquote(name), None if value == NULL_DIRECTORY else unquote(value)


def directory_of(column: str, value: str | None) -> str:
    """Return the name of the directory of rows with a value in a partition column, as in Spark and Hive.

    Examples
    --------
    >>> directory_of("day", "7/11"), directory_of("day", None)
    ('day=7%2F11', 'day=__HIVE_DEFAULT_PARTITION__')
    """
    return f"{_escaped(column)}={NULL_DIRECTORY if value in (None, '') else _escaped(str(value))}"


def _escaped(text: str) -> str:
    # Not by urllib's quote: Spark takes each escape for a character, where urllib has one for each byte of UTF-8.
    return re.sub(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""", lambda found: f"%{ord(found[0]):02X}", text)


def constant(value: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """Return a partition column for some rows of a directory.

    Examples
    --------
    >>> constant("7", pa.int32(), 2).to_pylist()
    [7, 7]
    """
    return pa.array([partition_value(value, kind)], kind).take(pa.array(np.zeros(rows, np.int64)))


def plan(files: Sequence[File], split_bytes: int) -> list[list[RecordSplit]]:
    """Return the splits that each task reads: parts of long files, or several small files.

    Parameters
    ----------
    files : sequence of File
        The files; empty ones are left out.
    split_bytes : int
        The most bytes for a task, except for files that can't be divided. Small data have smaller tasks.

    Returns
    -------
    list of list of RecordSplit
        One list for each task.
    """
    files = [file for file in files if file.size]
    total = sum(file.size + _OPENING_BYTES for file in files)
    size = min(split_bytes, max(_SMALLEST_SPLIT_BYTES, total // _PARTITIONS))
    splits = [split for file in files for split in _parts(file, size)]
    tasks: list[list[RecordSplit]] = []
    room = 0
    for split in sorted(splits, key=lambda each: each.begin - each.end):
        cost = split.end - split.begin + _OPENING_BYTES
        if cost > room or not tasks:
            tasks.append([])
            room = size
        tasks[-1].append(split)
        room -= cost
    return tasks


def _parts(file: File, size: int) -> Iterator[RecordSplit]:
    count = 1 if re.search(r"\.(gz|gzip|zlib|deflate)$", file.path) else max(1, round(file.size / size))
    bounds = [file.size * part // count for part in range(count + 1)]
    for begin, end in pairwise(bounds):
        yield RecordSplit(file, begin, end)
