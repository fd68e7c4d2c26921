"""Packed rows: bins of sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from numbers import Integral
from typing import Any

import numpy as np

from tensorflowonspark.columns import Array, Kind, Ragged
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.bins import Bins, join, pack
from tensorflowonspark.node.feed.composed_rows import ComposedRows
from tensorflowonspark.node.feed.order import Numbers, Order, row_order
from tensorflowonspark.node.feed.row_sources import sources_of
from tensorflowonspark.node.feed.selection import Batch, ComposedOptions
from tensorflowonspark.node.feed.sequences import SequenceSelection, runs
from tensorflowonspark.node.feed.shard import Allocate, Reader, Shard

SEGMENTS, POSITIONS = "segment_ids", "positions"


class PackedSelection(SequenceSelection):
    """The columns of packed rows: each value of a bin has its sequence's number in it (0 is padding), and its place.

    A column with one value for each row has it at each value of the row's sequence.
    """

    option = "pack"
    none = "all arrays are empty"
    too_long_choices = ("error", "cut", "split")
    is_mixed = True
    added = (SEGMENTS, POSITIONS)

    def __init__(self, manifest: SplitManifest, options: ComposedOptions) -> None:
        super().__init__(manifest, options, *_checked(options.pack))
        self.kinds.update(dict.fromkeys(self.added, Kind(np.dtype(np.int32), (self.length,))))

    def rows_of(self, source: Shard, seed: Sequence[int] | None) -> "PackedRows":
        """Pack rows by an order of a seed; arrays of a row that differ in length are a `FeedError`."""
        return PackedRows(source, self, seed)

    def _kind(self, name: str) -> Kind:
        kind = super()._kind(name)
        if name not in self.named and kind.dtype.kind == "O":
            raise FeedError(f"column {name!r} holds strings or bytes: packed rows have numbers")
        if name not in self.named and kind.ragged:
            raise FeedError(f"column {name!r} is ragged: name it in pack, or declare one shape for it")
        return replace(kind, shape=(self.length, *kind.inner))

    def _check_kinds(self, inference: bool) -> None:
        super()._check_kinds(inference)
        weight = self.sample_weight
        if weight is not None and prod(self.kinds[weight].inner) != self.length:
            raise FeedError(f"sample_weight={weight!r}: packed rows have one weight for each row, or name it in pack")

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """A weight for each value."""
        return (self.length,)

    def weights(self, batch: Batch) -> Array:
        """Return the weights of the values: the user's, or 1; 0 at the end of a bin; -0.0 in bins that fill up."""
        values, real = batch
        name = self.sample_weight
        given = np.asarray(values[SEGMENTS]) > 0 if name is None else np.asarray(values[name]).reshape(-1, self.length)
        return np.where(real[:, None], given + 0.0, -0.0).astype(self.weight_dtype)


def _checked(wanted: Any) -> tuple[list[str], int]:
    """Return the columns to pack, and the length."""
    lengths = list(wanted.values()) if isinstance(wanted, Mapping) else []
    are_lengths = all(isinstance(each, Integral) and not isinstance(each, bool) and int(each) > 0 for each in lengths)
    if not are_lengths or len(set(lengths)) != 1:
        raise SpecError(
            f"pack={wanted!r}: expected a dict of columns with one length above 0 for all, as in {{'tokens': 2048}}"
        )
    return list(wanted), int(lengths[0])


class PackedRows(ComposedRows):
    """The bins of one worker's rows; those of a mixture have the rows of one source, and the `facts` count these."""

    def __init__(self, source: Shard, selection: PackedSelection, seed: Sequence[int] | None) -> None:
        super().__init__(source)
        order = row_order(source.rows, seed)[:].astype(np.int64)
        lengths, splits = selection.lengths(source), selection.too_long == "split"
        parts = [order]
        if selection.mixture is not None:
            sources = sources_of(source, selection.mixture.column)[order]
            parts = [order[sources == number] for number in range(len(selection.mixture.names))]
        found = [pack(lengths, selection.length, own, splits=splits) for own in parts]
        self._bins = join(found)
        self.facts = list(map(len, found))

    @property
    def rows(self) -> int:
        """Number of bins."""
        return len(self._bins)

    def epoch(
        self,
        selection: PackedSelection,
        seed: Sequence[int] | None,
        batch_rows: int,  # noqa: ARG002 - any bins make a step
    ) -> tuple[Reader, Order]:
        """Return what gathers bins, and their order."""
        return _PackedReader(self._source.reader(selection.sources), self._bins, selection), row_order(self.rows, seed)


class _PackedReader(Reader):
    """Gathers the rows of bins, and puts their values side by side."""

    def __init__(self, rows: Reader, bins: Bins, selection: PackedSelection) -> None:
        self._rows = rows
        self._bins = bins
        self._selection = selection

    def stretch(self, numbers: Numbers) -> int:
        """Return how many bins to gather at once."""
        return len(numbers)

    def take(self, numbers: Numbers, empty: Allocate = np.empty) -> dict[str, Array | Ragged]:
        """Return bins by their numbers."""
        bins, length = self._bins, self._selection.length
        counts = bins.starts[numbers + 1] - bins.starts[numbers]
        number = runs(counts)  # of a sequence in its bin
        pieces = np.repeat(bins.starts[numbers], counts) + number
        size = bins.size[pieces]
        position = runs(size)
        to = np.repeat(np.repeat(np.arange(len(numbers)) * length, counts) + bins.place[pieces], size) + position
        rows = self._rows.take(bins.sequence[pieces])

        def spread(values: Array, kind: Kind) -> Array:
            found = empty((len(numbers) * length, *kind.inner[1:]), kind.dtype)
            found[...] = 0
            found[to] = values
            return found.reshape(len(numbers), *kind.inner)

        found: dict[str, Array | Ragged] = {}
        for name, kind in self._selection.kinds.items():
            if name == SEGMENTS:
                values: Any = np.repeat(number + 1, size)
            elif name == POSITIONS:
                values = position
            elif isinstance(each := rows[name], Ragged):
                values = each.values[np.repeat(each.splits[0][:-1] + bins.begin[pieces], size) + position]
            else:
                values = np.repeat(each, size, axis=0)
            found[name] = spread(values, kind)
        return found
