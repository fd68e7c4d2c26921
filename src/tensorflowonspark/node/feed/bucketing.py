"""Rows in buckets: those of one step have sequences of about one length, and are padded to one of a few lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from numbers import Integral
from typing import Any

import numpy as np

from tensorflowonspark.columns import Array, Kind, Ragged
from tensorflowonspark.columns.arrays import split_at
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.composed_rows import ComposedRows
from tensorflowonspark.node.feed.order import Numbers, row_order
from tensorflowonspark.node.feed.row_window import PRESENT
from tensorflowonspark.node.feed.selection import Batch, ComposedOptions, names_in
from tensorflowonspark.node.feed.sequences import SequenceSelection, runs
from tensorflowonspark.node.feed.shard import Allocate, Reader, Shard


class BucketedSelection(SequenceSelection):
    """The columns of rows whose sequences are padded to the smallest of some lengths that those of a step fit into.

    If the labels are sequences, each value has a weight, which is 0 at padding; otherwise each row has.
    """

    option = "bucket"
    none = "there are no rows"
    too_long_choices = ("error", "cut")
    added = (PRESENT,)

    def __init__(self, manifest: SplitManifest, options: ComposedOptions) -> None:
        named, self.bounds = _checked(options.bucket)
        self.longest = int(self.bounds[-1])
        super().__init__(manifest, options, named, self.longest)
        self.kinds[PRESENT] = Kind(np.dtype(np.bool_), (None,), padded=True)
        labels = [name in named for name in names_in(self.label)]
        if any(labels) and not all(labels):
            raise FeedError(f"{self.call} names some of the labels {names_in(self.label)}: name all or none of them")
        self._by_value = any(labels)
        weight = self.sample_weight
        if weight in named and not self._by_value:
            raise FeedError(f"{self.call} names sample_weight={weight!r}: weights of values need labels of values")
        if weight is not None and weight not in named and self._by_value and prod(self.kinds[weight].inner) != 1:
            raise FeedError(f"sample_weight={weight!r}: rows have one weight each, or name it in bucket")

    def rows_of(self, source: Shard, seed: Sequence[int] | None) -> "BucketedRows":  # noqa: ARG002 - it needs none
        """Return the rows in buckets; arrays of a row that differ in length are a `FeedError`."""
        return BucketedRows(source, np.searchsorted(self.bounds[:-1], self.lengths(source)), self.bounds)

    def _kind(self, name: str) -> Kind:
        kind = super()._kind(name)
        return replace(kind, padded=True) if name in self.named else kind

    def finished(self, batch: Batch) -> Batch:
        """Return a batch with one array of each column; rows that fill up the step are cut or padded to the others."""
        values, real = batch
        present = values[PRESENT]
        assert isinstance(present, Ragged)
        lengths = np.diff(present.splits[0])
        width = int(lengths[real].max(initial=self.bounds[0]))

        def made(each: Array | Ragged, kind: Kind) -> Array | Ragged:
            if not (kind.padded and isinstance(each, Ragged)):
                return each
            if not (lengths == width).all():
                each = _resized(each, np.full(len(lengths), width))
            return each.values.reshape(len(lengths), width, *kind.inner)

        return {name: made(each, self.kinds[name]) for name, each in values.items()}, real

    @property
    def weight_shape(self) -> tuple[int | None, ...]:
        """A weight for each value, if each has a label."""
        return (None,) if self._by_value else super().weight_shape

    def weights(self, batch: Batch) -> Array:
        """Return the weights of a finished batch: the user's, or 1; -0.0 in rows that fill up a step, 0 at padding."""
        if not self._by_value:
            return super().weights(batch)
        values, real = batch
        present = np.asarray(values[PRESENT])
        given = 1.0 if self.sample_weight is None else np.asarray(values[self.sample_weight]).reshape(len(real), -1)
        return np.where(real[:, None], present * given + 0.0, -0.0).astype(self.weight_dtype)


def _checked(wanted: Any) -> tuple[list[str], Numbers]:
    """Return the columns, and the lengths."""
    found = [_lengths(each) for each in wanted.values()] if isinstance(wanted, Mapping) else []
    if not found or not found[0] or any(each != found[0] for each in found):
        raise SpecError(
            f"bucket={wanted!r}: expected a dict of columns with the same lengths for all, each above 0 and the one "
            "before, as in {'tokens': [128, 256, 512]}"
        )
    return list(wanted), np.array(found[0])


def _lengths(given: Any) -> list[int]:
    """Return lengths, or [] if they can't be any."""
    listed = list(given) if isinstance(given, (list, tuple, range, np.ndarray)) else []
    if not all(isinstance(each, Integral) and not isinstance(each, bool) for each in listed):
        return []
    return [int(each) for each in listed] if all(np.diff([0, *listed]) > 0) else []


class BucketedRows(ComposedRows):
    """One worker's rows, by the number of each one's bucket; the `facts` are how many are in each bucket."""

    def __init__(self, source: Shard, buckets: Numbers, bounds: Numbers) -> None:
        super().__init__(source)
        self._buckets = buckets
        self._bounds = bounds
        self.facts = np.bincount(buckets, minlength=len(bounds)).tolist()
        self._of_all = [self.facts]

    def check_workers(self, facts: Sequence[Any], index: int) -> None:  # noqa: ARG002 - all may have any rows
        """Note how many rows of all workers are in each bucket."""
        self._of_all = list(facts)

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._buckets)

    def epoch(
        self, selection: BucketedSelection, seed: Sequence[int] | None, batch_rows: int
    ) -> tuple[Reader, Numbers]:
        """Return what pads them, and their order: shuffled, then by bucket, then so many at a time in any order.

        That order is of all workers, and so many rows are of the same steps on each: so all know the longest row of a
        step, to which each pads its own.
        """
        order = row_order(self.rows, seed)[:]
        order = order[np.argsort(self._buckets[order], kind="stable")]
        most = -(-max(map(sum, self._of_all)) // batch_rows)
        common = None if seed is None else seed[:-1]  # without the number of the worker
        longest = np.zeros(most, np.int64)
        for counts in self._of_all:
            ends = np.minimum((_turns(sum(counts), batch_rows, most, common) + 1) * batch_rows, sum(counts))
            longest[: len(ends)] = np.maximum(longest[: len(ends)], np.searchsorted(np.cumsum(counts), ends))
        turns = _turns(self.rows, batch_rows, most, common)
        order = np.concatenate([order[:0], *(order[each * batch_rows : (each + 1) * batch_rows] for each in turns)])
        widths = np.zeros(self.rows, np.int64)
        widths[order] = np.repeat(self._bounds[longest], batch_rows)[: self.rows]
        return _BucketedReader(self._source.reader(selection.sources), selection, widths), order


def _turns(rows: int, size: int, most: int, seed: Sequence[int] | None) -> Numbers:
    """Return in which order so many rows come, `size` at a time; a rest comes last.

    Of `most` at all, those of about the same place in the rows come at about the same time whatever `rows` is.
    """
    whole, rest = divmod(rows, size)
    places = np.arange(whole) * most // max(1, whole)
    turns = np.argsort(np.argsort(row_order(most, seed)[:])[places])
    return np.append(turns, [whole] if rest else []).astype(np.int64)


class _BucketedReader(Reader):
    """Gathers rows, cuts or pads their sequences to the `widths` of the rows, and marks what is no padding."""

    def __init__(self, rows: Reader, selection: BucketedSelection, widths: Numbers) -> None:
        self._rows = rows
        self._named = selection.named
        self._widths = widths

    def stretch(self, numbers: Numbers) -> int:
        """Return how many rows to gather at once."""
        return self._rows.stretch(numbers)

    def take(self, numbers: Numbers, empty: Allocate = np.empty) -> dict[str, Array | Ragged]:
        """Return rows by their numbers."""
        found, widths = self._rows.take(numbers, empty), self._widths[numbers]
        sequences = {name: each for name in self._named if isinstance(each := found[name], Ragged)}
        first = sequences[self._named[0]]
        sequences[PRESENT] = Ragged(np.ones(len(first.values), np.bool_), first.splits)
        return {**found, **{name: _resized(each, widths) for name, each in sequences.items()}}


def _resized(rows: Ragged, widths: Numbers) -> Ragged:
    """Return rows that are cut to these lengths, or padded with zeros.

    Examples
    --------
    >>> _resized(Ragged(np.array([1, 2, 3]), (np.array([0, 1, 3]),)), np.array([2, 1])).rows()
    array([array([1, 0]), array([2])], dtype=object)
    """
    (splits,) = rows.splits
    lengths = np.minimum(np.diff(splits), widths)
    made = split_at(widths)
    values = np.zeros((made[-1], *rows.values.shape[1:]), rows.values.dtype)
    place = runs(lengths)
    values[np.repeat(made[:-1], lengths) + place] = rows.values[np.repeat(splits[:-1], lengths) + place]
    return Ragged(values, (made,))
