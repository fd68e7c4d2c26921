"""Mixtures of files: several sources of one format, listed as one."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import unused_name
from tensorflowonspark.errors import SpecError
from tensorflowonspark.mixture import check_alike, parse_mixture
from tensorflowonspark.node.feed.footers import ReadFooters, footers
from tensorflowonspark.node.feed.source import Listed, Source
from tensorflowonspark.node.feed.windows import FileSplit

Paths = str | Sequence[str]


@dataclass(frozen=True)
class _NumberedSplit:
    """A split whose rows have the columns of the first source, and as the last one the number of their own."""

    split: FileSplit
    source: int
    schema: pa.Schema

    @property
    def name(self) -> str:
        """The file, and the part of it."""
        return self.split.name

    @property
    def size(self) -> int:
        """Size in bytes, by which the splits are divided."""
        return self.split.size

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield its rows."""
        *fields, _ = self.schema
        for batch in self.split.batches():
            # Types that are equal may name the fields of lists differently, which a stream of batches does not allow.
            columns = [batch.column(each.name).cast(each.type) for each in fields]
            numbers = pa.array(np.full(batch.num_rows, self.source, np.int32))
            yield pa.RecordBatch.from_arrays([*columns, numbers], schema=self.schema)

    def count(self) -> int:
        """Return the number of its rows, which may need to be read."""
        return self.split.count()


def find_sources(
    paths: Paths | Mapping[str, tuple[Paths, float]],
    epoch_rows: int | None,
    source_of: Callable[[list[str]], Source],
    read_footers: ReadFooters = footers,
) -> Listed:
    """List what a program names: the paths of a source, or a dict of those of several, and their shares.

    What is wrong with it is a `SpecError`.
    """
    if not isinstance(paths, Mapping):
        if epoch_rows is not None:
            raise SpecError("epoch_rows is for a mixture: pass a dict of paths and their shares")
        return source_of(_named(paths)).find(read_footers)
    sources, mixture = parse_mixture("paths", paths, epoch_rows)
    listed = {name: source_of(_named(each)).find(read_footers) for name, each in sources.items()}
    first = next(iter(listed.values()))
    types = {name: {field.name: field.type for field in each.schema} for name, each in listed.items()}
    for name, own in types.items():
        check_alike(f"source {name!r}", own, types[mixture.names[0]])
    column = unused_name(first.schema.names, "source")
    schema = first.schema.append(pa.field(column, pa.int32()))
    splits = [
        _NumberedSplit(split, number, schema) for number, each in enumerate(listed.values()) for split in each.splits
    ]
    return Listed(splits, schema, first.source, replace(mixture, column=column))


def _named(paths: Paths) -> list[str]:
    return [paths] if isinstance(paths, str) else list(paths)
