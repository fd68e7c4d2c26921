"""Splits of TFRecord files: the parts that tasks read."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tensorflowonspark.storage.listing import File

_PARTITIONS = 32  # at least, unless splits would be smaller than the next value
_SMALLEST_SPLIT_BYTES = 32 << 20  # reading this takes about as long as starting a task
_OPENING_BYTES = 1 << 20  # the cost of opening a file, in bytes that could be read meanwhile


@dataclass(frozen=True)
class RecordSplit:
    """The records of a file whose frames begin in ``[begin, end)``, in bytes."""

    file: File
    begin: int
    end: int


def plan(files: Sequence[File], split_bytes: int) -> list[list[RecordSplit]]:
    """Return the splits that each task reads: parts of long files, or several small files.

    A task has at most so many bytes as `split_bytes`, except for files that can't be divided. Small data have smaller
    tasks. Empty files are left out.
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
