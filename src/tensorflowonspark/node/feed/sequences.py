"""What packed and bucketed rows have in common: columns with a sequence in each row, as many values in each of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc

from tensorflowonspark.columns import Kind
from tensorflowonspark.columns.layout import is_list
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.composed_rows import ComposedSelection
from tensorflowonspark.node.feed.order import Numbers
from tensorflowonspark.node.feed.selection import ComposedOptions, names_in
from tensorflowonspark.node.feed.shard import Shard


class SequenceSelection(ComposedSelection):
    """The columns of rows that have sequences, of at most `length` values, in the columns that are `named`.

    `option` is the program's word for it, and `added` are the features that say what of them is no padding.
    """

    option: ClassVar[str]
    too_long_choices: ClassVar[Sequence[str]]
    added: ClassVar[Sequence[str]]

    def __init__(self, manifest: SplitManifest, options: ComposedOptions, named: list[str], length: int) -> None:
        self.named, self.length, self.too_long = named, length, options.too_long
        self.call = f"{self.option}={getattr(options, self.option)}"
        self.made = f"{self.call}, too_long={self.too_long!r}"
        if self.too_long not in self.too_long_choices:
            choices = ", ".join(map(repr, self.too_long_choices))
            raise SpecError(f"too_long={self.too_long!r}: expected one of {choices} with {self.option}")
        shapes = {**dict.fromkeys(named, (None,)), **(options.shapes or {})}
        super().__init__(manifest, replace(options, shapes=shapes))
        self.features = [*names_in(self.features), *self.added]

    def _check_names(self, used: Any) -> None:
        for name in self.named:
            if name not in used:
                raise FeedError(f"{self.option} names column {name!r}, but the program takes {list(used)}")
        for name in self.added:
            if name in used:
                raise FeedError(f"column {name!r} would take the place of one that {self.option} adds: rename it")
        super()._check_names(used)

    def _kind(self, name: str) -> Kind:
        """Return the kind of a row's values."""
        kind = self.sources[name] = super()._kind(name)
        if name not in self.named:
            return kind
        if kind.dtype.kind == "O":
            raise FeedError(
                f"column {name!r} holds strings or bytes: {self.option} takes numbers, such as ids of tokens"
            )
        if kind.varying != 1 or not is_list(self._schema.field(name).type):
            raise FeedError(
                f"{self.option} names column {name!r}, which must hold arrays that differ in length in one dimension"
            )
        lengths = self._summaries[name].lengths
        if self.too_long == "error" and lengths and lengths[0].longest > self.length:
            others = " or ".join(f"too_long={each!r}" for each in self.too_long_choices if each != "error")
            raise FeedError(
                f"column {name!r} holds an array of {lengths[0].longest} values in {lengths[0].longest_at}, and "
                f"{self.call} takes as many as {self.length}: pass {others}, or a larger length"
            )
        return kind

    def lengths(self, source: Shard) -> Numbers:
        """Return how many values each row has; columns in which it has others are a `FeedError`."""
        first, *others = (_lengths(source, name) for name in self.named)
        for name, lengths in zip(self.named[1:], others, strict=True):
            if (wrong := np.flatnonzero(lengths != first)).size:
                row = int(wrong[0])
                raise FeedError(
                    f"{self.option}={self.named}: row {row} of this worker has {first[row]} values in "
                    f"{self.named[0]!r} and {lengths[row]} in {name!r}: they must be as many"
                )
        return first


def _lengths(source: Shard, name: str) -> Numbers:
    found = [
        pc.list_value_length(batch.column(name)).fill_null(0).to_numpy(zero_copy_only=False) for batch in source.batches
    ]
    return np.concatenate([np.arange(0), *found])


def runs(counts: Numbers) -> Numbers:
    """Return 0, 1, ... for each count.

    Examples
    --------
    >>> runs(np.array([2, 0, 3]))
    array([0, 1, 0, 1, 2])
    """
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
