"""Splits of files, which the nodes read themselves: their division among workers, and those of TFRecord files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tensorflowonspark.tfrecords.files import Split as RecordSplit
from tensorflowonspark.tfrecords.files import find, plan
from tensorflowonspark.tfrecords.infer import check_columns, chosen, inferred, partition_types
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.reading import read

__all__ = ["FileSplit", "divide", "tfrecord_splits"]


class FileSplit(Protocol):
    """A part of some files that one worker reads."""

    @property
    def name(self) -> str:
        """The file, and the part of it."""

    @property
    def size(self) -> int:
        """Size in bytes, by which the splits are divided."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""


def divide(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Return the numbers of each worker's splits: the largest first, each to the worker with the least load.

    Examples
    --------
    >>> divide([1, 5, 2, 3], 2)
    [[0, 1], [2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(workers)]
    load = [0] * workers
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        least = load.index(min(load))
        shares[least].append(number)
        load[least] += sizes[number]
    return [sorted(each) for each in shares]


@dataclass(frozen=True)
class _Records:
    """A byte range of a TFRecord file."""

    split: RecordSplit
    columns: list[pa.Field]
    options: Options

    @property
    def name(self) -> str:
        return f"{self.split.file.path} from byte {self.split.begin} to {self.split.end}"

    @property
    def size(self) -> int:
        return self.split.end - self.split.begin

    def batches(self) -> Iterator[pa.RecordBatch]:
        return read([self.split], self.columns, self.options)


def tfrecord_splits(
    paths: Sequence[str], schema: pa.Schema | None, columns: Sequence[str] | None, given: Mapping[str, Any]
) -> tuple[list[FileSplit], pa.Schema]:
    """Return the splits of TFRecord files, and the columns of their rows; `given` holds options by Spark's names."""
    options = Options.of(given)
    files = find(paths, options.recursive_file_lookup)
    fields = inferred(files, options) if schema is None else list(schema)
    fields = check_columns(_select(fields, columns), options, partition_types(files))
    splits = [split for task in plan(files, options.split_bytes) for split in task]
    splits.sort(key=lambda each: (each.file.path, each.begin))
    return [_Records(split, fields, options) for split in splits], pa.schema(fields)


def _select(fields: Sequence[pa.Field], columns: Sequence[str] | None) -> list[pa.Field]:
    known = {each.name: each for each in fields}
    return [known[name] for name in chosen(columns, list(known))]
