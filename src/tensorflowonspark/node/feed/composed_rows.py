"""Rows that are made of a worker's rows, so that their plan, order and padding are as for others.

They follow from the rows and the seed alone, and are the same in all epochs, in an order of each: so all epochs have as
many steps, and a program that resumes at a step finds it again.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from tensorflowonspark.columns import Kind
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.order import Mask, Order
from tensorflowonspark.node.feed.selection import ComposedOptions, Selection
from tensorflowonspark.node.feed.shard import Reader, Segment, Shard

if TYPE_CHECKING:
    from typing_extensions import Self


class ComposedSelection(Selection, ABC):
    """The columns of composed rows.

    For messages `call` is what the program asks for, and `none` why there are none; `made` says all of how they are
    made of the rows that a worker has.
    """

    call: str
    none: str
    made: str
    is_mixed: ClassVar[bool] = False  # whether each composed row of a mixture is of one source, in the order of these
    sources: dict[str, Kind]  # of the rows

    def __init__(self, manifest: SplitManifest, options: ComposedOptions) -> None:
        self.sources = {}
        self.mixture = manifest.mixture
        super().__init__(manifest, options)

    @abstractmethod
    def rows_of(self, source: Shard, seed: Sequence[int] | None) -> "ComposedRows":
        """Return the composed rows of a worker; rows of which none can be made are a `FeedError`."""


class ComposedRows(ABC):
    """One worker's composed rows; each kind returns its own reader of them."""

    facts: Any = None  # what the other workers must know of these rows
    _pass_order: Order | None = None  # of a pass, in place of one by its seed

    def __init__(self, source: Shard) -> None:
        self._source = source

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many there are."""

    @abstractmethod
    def epoch(self, selection: Any, seed: Sequence[int] | None, batch_rows: int) -> tuple[Reader, Order]:
        """Return what gathers them, and their order in an epoch, `batch_rows` of which are a step's."""

    def check_workers(self, facts: Sequence[Any], index: int) -> None:  # noqa: B027 - most need none
        """Raise `FeedError` if the `facts` of all workers do not go together; these are those of number `index`."""

    def bytes_per_row(self, names: Iterable[str]) -> float:
        """Return the mean size of a row's values as they are stored, in bytes."""
        batches = self._source.batches
        stored = self._source.bytes_per_row(name for name in names if batches and name in batches[0].schema.names)
        return stored * self._source.rows / max(1, self.rows)

    def window_rows(self, batch_rows: int) -> int:  # noqa: ARG002 - as of a `Shard`
        """Return 0: an epoch's order is one of all rows."""
        return 0

    def only(self, left: Mask) -> NoReturn:
        """Raise: which rows of the DataFrame a step has had is not known, so what is left of an epoch are steps."""
        raise NotImplementedError(f"{type(self).__name__}.only({left})")

    def in_order(self, order: Order) -> "Self":
        """Return those of these numbers, which each pass takes in this order."""
        found = type(self).__new__(type(self))
        found.__dict__.update(self.__dict__, _pass_order=order)
        return found

    def segments(
        self,
        selection: Selection,
        seed: Sequence[int] | None,
        batch_rows: int,
        first_row: int,  # noqa: ARG002 - all are one segment
    ) -> Generator[Segment, None, None]:
        """Yield the rows of one epoch as one segment."""
        reader, order = self.epoch(selection, seed, batch_rows)
        yield Segment(0, reader, order if self._pass_order is None else self._pass_order)
