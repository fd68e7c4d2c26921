"""Files of any format: those of a path, with the partition columns of their directories, by the rules of Spark."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.storage.file_systems import file_system, files_below, matching
from tensorflowonspark.storage.hadoop import settings
from tensorflowonspark.storage.partition_columns import partition_of, partition_type, time_zone

# The settings of Spark's session that its own file sources obey when they list files, with the field of each.
SETTINGS = {
    "spark.sql.caseSensitive": "case_sensitive",
    "spark.sql.files.ignoreInvalidPartitionPaths": "ignore_invalid_partition_paths",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "partition_column_type_inference",
}
# Those that change which rows are read, and are not implemented, with the value that changes nothing.
UNSUPPORTED = {
    "mapreduce.input.pathFilter.class": "",
    "spark.sql.files.archive.reader.enabled": "false",
    "spark.sql.files.ignoredPathSegmentRegex": "^[._]",
}


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Which files of a path are wanted, and which directories are partition columns: the options of Spark's sources."""

    path_glob_filter: str = ""
    modified_after: str = ""
    modified_before: str = ""
    time_zone: str = ""
    base_path: str = ""
    recursive_file_lookup: bool = False
    partition_column_type_inference: bool = True
    ignore_invalid_partition_paths: bool = False
    case_sensitive: bool = False

    @classmethod
    def of_session(cls, format_: str) -> "Listing":
        """Return what the settings of Spark's session ask for, for files of a format, which an error names."""
        check_settings(format_)
        session = settings()
        given: dict[str, Any] = {
            field: session[name].strip().lower() == "true" for name, field in SETTINGS.items() if name in session
        }
        return cls(**given)

    def times(self) -> tuple[float | None, float | None]:
        """Return after and before which time files were written, in seconds since 1970; None for any time."""
        after = self._seconds("modifiedAfter", self.modified_after)
        return after, self._seconds("modifiedBefore", self.modified_before)

    def _seconds(self, option: str, text: str) -> float | None:
        if not text:
            return None
        try:
            when = datetime.fromisoformat(text)
            return (when if when.tzinfo else when.replace(tzinfo=time_zone(self.time_zone))).timestamp()
        except (ValueError, KeyError, OSError) as error:
            raise SpecError(
                f"option {option}={text!r}, timeZone={self.time_zone!r}: expected a time such as "
                f"2026-11-25T08:00:00 and a zone such as Europe/Berlin or +01:00 ({error})"
            ) from None


def check_settings(format_: str) -> None:
    """Raise a SpecError if Spark's session has a setting of `UNSUPPORTED`, which files of the format don't obey."""
    session = settings()
    for name, harmless in UNSUPPORTED.items():
        if session.get(name, harmless).lower() != harmless:
            raise SpecError(f"{name}={session[name]!r} is not supported for {format_} files: unset it")


@dataclass(frozen=True)
class File:
    """A file, by its fsspec URL or local path."""

    path: str
    size: int  # in bytes
    modified: float  # in seconds since 1970; 0 if the file system does not report it
    values: tuple[tuple[str, str | None], ...] = ()  # of its partition columns, by the names of its directories


def find(paths: Sequence[str], listing: Listing) -> list[File]:
    """Return the files of some paths that are not empty, in the order of their names and without duplicates.

    A path is a file, a directory or a wildcard (``*``, ``?``, ``[ab]``, ``{a,b}``). In a directory, names that begin
    with ``_`` or ``.`` are ignored, except for ``_column=value``, and so are files that are being copied
    (``*._COPYING_``). Directories that are not named ``column=value`` are ignored too, unless some are or
    `recursive_file_lookup` is set. A path that does not exist is a SpecError, and so are directories that contradict
    each other.
    """
    found: dict[str, File] = {}
    names: dict[str, str] = {}  # of the partition columns, by what they are in another case
    for path in paths:
        files, within = file_system(path)
        roots, wild = _roots(files, within)
        if not roots or not all(files.exists(root) for root in roots):
            raise SpecError(f"there is no file or directory {path!r}")
        for root in roots:
            listed = dict(_wanted(files, root, wild, listing))
            for name, folders in _partitioned(listed, root, listing).items():
                url = str(files.unstrip_protocol(name)) if "file" not in files.protocol else name
                values = tuple(partition_of(each, url) for each in folders)
                if not listing.case_sensitive:
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


def _wanted(files: Any, root: str, wild: bool, listing: Listing) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the files at a file or below a directory that are neither hidden nor empty, as the options want them."""
    after, before = listing.times()
    globs = _alternatives(listing.path_glob_filter or "*")
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


def _partitioned(found: dict[str, Any], root: str, listing: Listing) -> dict[str, tuple[str, ...]]:
    """Return the files that are read, each with its directories ``column=value``."""
    if listing.recursive_file_lookup:
        return dict.fromkeys(found, ())
    base = file_system(listing.base_path)[1].rstrip("/") if listing.base_path else root.rstrip("/")
    if not f"{root}/".startswith(f"{base}/"):
        raise SpecError(f"option basePath={listing.base_path!r} is not above {root}")
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
    if (strays := sorted(found.keys() - inside)) and not listing.ignore_invalid_partition_paths:
        raise SpecError(
            f"{strays[0]} is not in a directory of a partition, as {min(inside)} is: move it, read each of them for "
            "itself, or set ignoreInvalidPartitionPaths"
        )
    return inside


def _is_hidden(name: str) -> bool:
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def check_unchanged(file: File) -> None:
    """Raise a FeedError if the size or the time of a file is not as it was when it was listed, or it is gone."""
    files, path = file_system(file.path)
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


def partition_types(files: Sequence[File], listing: Listing) -> dict[str, pa.DataType]:
    """Return the types of the partition columns, which all their values fit, or text if the listing asks for it.

    Examples
    --------
    >>> partition_types([File("a", 1, 0.0, (("day", "7"),)), File("b", 1, 0.0, (("day", None),))], Listing())
    {'day': DataType(int32)}
    """
    names = {name for file in files for name, _ in file.values}
    for file in files:
        if {name for name, _ in file.values} != names:
            raise SpecError(f"{file.path} is not in directories for {', '.join(sorted(names))}, as other files are")
    if not listing.partition_column_type_inference:
        return dict.fromkeys(sorted(names), pa.string())
    return {
        name: partition_type([value for file in files for key, value in file.values if key == name])
        for name in sorted(names)
    }
