"""What may be fed, and how."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tensorflowonspark.columns import check_schema, require_frame
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import CacheConfig, CacheMode, Split
from tensorflowonspark.mixture import Mixture
from tensorflowonspark.run_manifest import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Contents = dict[int, tuple[int, int]]  # the rows and the checksum of each partition that has rows
Start = Literal["all_rows", "first_rows"]


@dataclass(frozen=True)
class FeedRequest:
    """A feed as the user's program asks for it; `FeedSettings` documents the options."""

    data: "DataFrame | BatchRDD | None"  # None: the data of a held stage over Spark Connect, which only its tasks see
    validation: "DataFrame | str | None" = None  # rows of their own, or a boolean column of `data`
    cache: CacheConfig = field(default_factory=CacheConfig)
    start: Start = "all_rows"
    rebalance: bool = True
    timeout: float = 600.0  # seconds
    is_global: bool = False  # an epoch's steps have the same rows on any number of workers
    mixture: Mixture | None = None  # of which the rows are; its epochs are global too
    independent_workers: bool = False  # they take no steps together
    round_robin: bool = False  # the tasks' rows are those of all partitions in turn (`driver/spark/repartition.py`)
    given: Record = field(default_factory=dict, compare=False)  # the settings, as a run's manifest has them
    # What was fed before a restart: the rows and the checksum of each partition, by split and `round_robin`.
    contents: dict[tuple[Split, bool], Contents] = field(default_factory=dict, compare=False)

    @property
    def keeps_rows(self) -> bool:
        """Whether the nodes keep the rows, so that the programs can pass over them several times."""
        return self.cache.keep is not CacheMode.NONE

    @property
    def starts_early(self) -> bool:
        """Whether the programs take the rows as they arrive; if the nodes keep them, in their first pass."""
        return self.start == "first_rows" or not self.keeps_rows

    @property
    def validation_column(self) -> str:
        """The boolean column that marks the rows to validate on; empty if there is none."""
        return self.validation if isinstance(self.validation, str) else ""

    @property
    def unit(self) -> str:
        """The unit in which rows are counted, for error messages."""
        return self.data.unit if isinstance(self.data, BatchRDD) else "rows"

    @property
    def read_with(self) -> str:
        """The function by which programs read the feed, for error messages."""
        return self.data.read_with if isinstance(self.data, BatchRDD) else "ctx.dataset"


def check_frame(frame: "DataFrame", validation: "DataFrame | str | None" = None) -> None:
    """Raise if the data can't be fed, before anything starts.

    A DataFrame without columns or with one that no tensor can hold, validation data with other columns, and a
    validation column that is missing or not boolean raise `FeedError`. What is neither a DataFrame nor a column's name
    raises `SpecError`.
    """
    require_frame(frame, "data")
    check_schema(frame.schema)
    if validation is None:
        return
    if not isinstance(validation, str):
        require_frame(validation, "validation")
        check_schema(validation.schema)
        if validation.columns != frame.columns:
            raise FeedError(
                f"the validation data has the columns {validation.columns}, and the training data {frame.columns}: "
                "they must be the same"
            )
        return
    if validation not in frame.columns:
        raise FeedError(f"validation={validation!r}: there is no such column; the DataFrame has {frame.columns}")
    kind = frame.schema[validation].dataType.simpleString()
    if kind != "boolean":
        raise FeedError(f"validation={validation!r}: the column has type {kind}, and must be boolean")
