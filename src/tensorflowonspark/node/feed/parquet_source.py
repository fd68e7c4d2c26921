"""Parquet files, by their paths or as a table names them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.feed.file_columns import ParquetFiles, parquet_files
from tensorflowonspark.node.feed.footers import ReadFooters, footers
from tensorflowonspark.node.feed.row_groups import row_groups
from tensorflowonspark.node.feed.source import Listed, Source


class ParquetBased(Source):
    """Parquet files, as a table or a directory names them."""

    @abstractmethod
    def files(self) -> "tuple[ParquetFiles, Source]":
        """Return the files, and the source of these files."""

    def find(self, read_footers: ReadFooters = footers) -> Listed:
        """Return the row groups that a filter does not exclude by their statistics."""
        files, source = self.files()
        groups, schema = row_groups(files, self.columns, self.filter, read_footers)
        return Listed(groups, schema, source)


@dataclass(frozen=True)
class ParquetSource(ParquetBased):
    """Files, directories or wildcards."""

    kind: ClassVar[str] = "parquet"
    paths: Sequence[str]

    def files(self) -> "tuple[ParquetFiles, ParquetSource]":
        """List them."""
        return parquet_files(self.paths), self


def missing(call: str, library: str, extra: str) -> SpecError:
    """Return the error of a call whose library is not installed."""
    return SpecError(f"{call} needs {library}, which is not installed: pip install 'tensorflowonspark[{extra}]'")
