"""Sources: the files of one format that nodes read themselves, by the request of a program."""

import base64
import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from tensorflowonspark.mixture import Mixture
from tensorflowonspark.node.feed.footers import ReadFooters, footers
from tensorflowonspark.node.feed.windows import FileSplit
from tensorflowonspark.run_manifest import Record


class Listed(NamedTuple):
    """What a source has: its splits in the same order on all workers, their columns, and the source of these files."""

    splits: Sequence[FileSplit]
    schema: pa.Schema
    source: "Source"  # with the version of the table; of a mixture, the first one
    mixture: Mixture | None = None  # of which the rows are, with the number of each one's source in a column


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """What a program asks for; another format is a class beside `ParquetSource`, `DeltaSource` and `TFRecordSource`."""

    kind: ClassVar[str]  # that of ``ctx.read_<kind>``
    columns: Sequence[str] | None = None  # None: all
    filter: Any = None
    cache_limit: int | str | None = None

    @abstractmethod
    def find(self, read_footers: ReadFooters = footers) -> Listed:
        """List the files; a wrong request, or what can't be read, is a `SpecError`."""

    @property
    def of_table(self) -> Record:
        """The table and its version, as a run's manifest has them; {} of files that are none's."""
        return {}

    def shown(self) -> str:
        """Return the version of the table, and the filter, for errors."""
        given = {name: getattr(self, name, None) for name in ("version", "snapshot", "filter")}
        return "".join(f", {name}={value}" for name, value in given.items() if value is not None)

    def to_json(self) -> str:
        """Return it as JSON can hold it, for a request from the chief to the workers."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def from_json(text: str) -> "Source":
        """Return what `to_json` was called on."""
        found: Source = pickle.loads(base64.b64decode(text))
        return found
