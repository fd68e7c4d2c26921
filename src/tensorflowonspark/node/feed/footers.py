"""Footers of Parquet files: each is read by one worker, which gives all others what they need of it, and keeps that.

So all workers have the same numbers of rows, and many files take as little time as there are workers and threads.
"""

import base64
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.feed import kept
from tensorflowonspark.node.feed.file_columns import DataFile
from tensorflowonspark.storage.file_systems import READS_AT_ONCE, is_object_store
from tensorflowonspark.storage.listing import File

INT96 = "us"  # Spark's old timestamps: Arrow's nanoseconds do not hold the years before 1677 and after 2262
_KIND = f"parquet {INT96}"


class Footer(NamedTuple):
    """What a footer says: the columns, and of each row group the number of rows and the bytes when decoded."""

    schema: pa.Schema
    groups: Sequence[tuple[int, int]]


Combine = Callable[[Any, Callable[[list[Any]], Any]], Any]  # takes a value, and what makes one of all workers' values
ReadFooters = Callable[[Sequence[DataFile]], list[Footer]]


def fragment(file: DataFile) -> Any:
    """Return a file with its footer, as a fragment of an Arrow dataset.

    A file that is no Parquet file, or can't be read, is a `SpecError`.
    """
    from pyarrow.dataset import ParquetFileFormat, ParquetReadOptions  # imports pandas

    known = _guarantee(file)
    files, path = storage.file_system(file.path)
    format_ = ParquetFileFormat(ParquetReadOptions(coerce_int96_timestamp_unit=INT96))
    try:
        if file.size and is_object_store(files):  # one request, where opening the file would ask for its size
            found = format_.make_fragment(path, files.fs, partition_expression=known, file_size=file.size)
            found.ensure_complete_metadata()
        else:
            with files.open(path, "rb") as opened:
                found = format_.make_fragment(opened, partition_expression=known)
                found.ensure_complete_metadata()
    except pa.ArrowInvalid as error:
        raise SpecError(f"{file.path} is no Parquet file ({error})") from None
    except (OSError, pa.ArrowException) as error:
        raise SpecError(f"the footer of {file.path} can't be read: {error}") from None
    return found


def _guarantee(file: DataFile) -> Any:
    known = pc.scalar(True)
    for name, value in file.constants.items():
        known = known & (pc.field(name) == value if value.is_valid else pc.field(name).is_null())
    return known


def not_excluded(files: Sequence[DataFile], expression: Any, columns: pa.Schema) -> list[DataFile]:
    """Return the files in which rows may pass a filter, by their constants alone; nothing is opened.

    Of a filter that does not fit these columns, the first file's, they are all: another file may have other types.
    """
    from pyarrow.dataset import FileSystemDataset, ParquetFileFormat  # imports pandas
    from pyarrow.fs import LocalFileSystem

    format_, nowhere = ParquetFileFormat(), LocalFileSystem()
    numbered = [
        format_.make_fragment(str(number), nowhere, partition_expression=_guarantee(file))
        for number, file in enumerate(files)
    ]
    try:
        found = FileSystemDataset(numbered, columns, format_, nowhere).get_fragments(expression)
        return [files[number] for number in sorted(int(each.path) for each in found)]
    except (pa.ArrowException, TypeError, ValueError):
        return list(files)


def footer_of(found: Any) -> Footer:
    """Return what the footer of a fragment says."""
    groups = [found.metadata.row_group(number) for number in range(found.metadata.num_row_groups)]
    return Footer(found.physical_schema, [(group.num_rows, group.total_byte_size) for group in groups])


def read_at_once(read: Callable[[DataFile], Any], files: Sequence[DataFile]) -> list[Any]:
    """Return what a function reads of each file; the first error ends it."""
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="footers") as readers:
        try:
            return list(readers.map(read, files))
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise


def footers(files: Sequence[DataFile]) -> list[Footer]:
    """Return the footers of some files, without those that are read that earlier runs have kept."""
    return _footers(files, _found(files))


def shared_footers(
    files: Sequence[DataFile],
    worker: int,
    workers: int,
    combine: Combine,
) -> list[Footer]:
    """Return the footers of files that all workers have listed, each of which reads its part."""
    listed = [(file.path, file.size) for file in files]
    found = combine((listed, _found(files[worker::workers])), _union)
    return footers(files) if found is None else _footers(files, found)  # other files are found out by the driver


def _union(of_workers: list[tuple[list[tuple[str, int]], dict[str, Any]]]) -> dict[str, Any] | None:
    """Return what all workers have found; None if they have listed other files."""
    first = of_workers[0][0]
    if any(listed != first for listed, _ in of_workers):
        return None
    return {path: entry for _, found in of_workers for path, entry in found.items()}


def _found(files: Sequence[DataFile]) -> dict[str, Any]:
    """Return the entries of files by their paths: those that are kept, and those of footers that are read now."""
    listed = [File(file.path, file.size, file.modified) for file in files]
    found = {path: entry for path, entry in kept.load(_KIND, listed).items() if _is_entry(entry)} if files else {}
    missing = [file for file in files if file.path not in found]
    for file, footer in zip(missing, read_at_once(lambda file: footer_of(fragment(file)), missing), strict=True):
        text = base64.b64encode(footer.schema.serialize().to_pybytes()).decode()
        found[file.path] = [text, list(map(list, footer.groups))]
    if missing:
        kept.keep(_KIND, listed, found)
    return found


def _is_entry(entry: Any) -> bool:
    """Return whether an entry is of the kind that this module writes."""
    try:
        text, groups = entry
        _schema(text)
        return all(type(each) is int and each >= 0 for rows, size in groups for each in (rows, size))
    except (TypeError, ValueError, AttributeError, pa.ArrowException):
        return False


@lru_cache(maxsize=64)  # most files of a read have the same columns
def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _footers(files: Sequence[DataFile], found: dict[str, Any]) -> list[Footer]:
    schemas = {text: _schema(text) for text in {found[file.path][0] for file in files}}
    return [Footer(schemas[text], groups) for text, groups in (found[file.path] for file in files)]
