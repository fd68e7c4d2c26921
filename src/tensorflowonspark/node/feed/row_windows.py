"""Windows of ordered rows: those of a key that follow each other, as one row of a pass."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.columns import Array, Kind, Ragged
from tensorflowonspark.errors import FeedError, SpecError, did_you_mean
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.composed_rows import ComposedRows, ComposedSelection
from tensorflowonspark.node.feed.order import Numbers, Order, row_order
from tensorflowonspark.node.feed.row_window import PRESENT, Window
from tensorflowonspark.node.feed.selection import ComposedOptions, names_in
from tensorflowonspark.node.feed.shard import Allocate, Reader, Shard

_AFTER = "\0after"  # behind a column's name: its values in the rows after the window; no column has such a name


class WindowSelection(ComposedSelection):
    """The columns of windows: features of the rows in them, labels of those after, the weight of the last row."""

    def __init__(self, manifest: SplitManifest, options: ComposedOptions) -> None:
        if not isinstance(options.window, Window):
            raise SpecError(f"window={options.window!r}: expected a Window, as in Window('store', 'day', length=56)")
        self.window = window = options.window
        self.call = self.made = f"window={window}"
        self.none = f"no key has {window.span} rows that follow each other (length and horizon)"
        super().__init__(manifest, options)
        features, labels = names_in(self.features), names_in(self.label)
        if bool(labels) != bool(window.horizon):
            raise SpecError(
                f"{self.call}: "
                + ("without a horizon no row follows a window" if labels else "name the label, of the rows that follow")
                + ": a label needs a horizon, and a horizon a label"
            )
        made = {
            name: replace(self.sources[name], shape=(window.length, *self.sources[name].inner)) for name in features
        }
        for name in labels:
            made[name + _AFTER] = replace(self.sources[name], shape=(window.horizon, *self.sources[name].inner))
        if self.sample_weight is not None:
            if self.sample_weight in features:
                raise FeedError(f"column {self.sample_weight!r} is a weight and a feature: give it two names")
            made[self.sample_weight] = self.sources[self.sample_weight]
        if window.short == "pad":
            self.features = [*features, PRESENT]
            made[PRESENT] = Kind(np.dtype(np.bool_), (window.length,))
        self.kinds = made

    def rows_of(self, source: Shard, seed: Sequence[int] | None) -> "WindowRows":  # noqa: ARG002 - it needs none
        """Return the windows of the rows; nulls in the key or the order, and equal values of it, are a `FeedError`."""
        return WindowRows(source, self)

    def arrange(self, values: Mapping[str, Any], weights: Any) -> Any:
        """Return columns in the structure that the program takes."""
        if self.label is None:
            return super().arrange(values, weights)
        after = {name: values[name + _AFTER] for name in names_in(self.label)}
        label = after[self.label] if isinstance(self.label, str) else after
        return self.pick_features(values), label, weights

    def _features(self, features: str | Sequence[str] | None) -> str | list[str]:
        found = super()._features(features)
        own = (*self.window.keys, self.window.order)
        return found if features is not None or isinstance(found, str) else [name for name in found if name not in own]

    def _check_names(self, used: Mapping[str, None]) -> None:
        for name in (*self.window.keys, self.window.order):
            if name not in self._columns:
                meant = did_you_mean(name, self._columns)
                raise FeedError(f"{self.call}: there is no column {name!r}{meant}: the rows have {list(self._columns)}")
        if self.window.short == "pad" and PRESENT in used:
            raise FeedError(f"column {PRESENT!r} would take the place of the windows' own: rename it")
        super()._check_names(used)

    def _kind(self, name: str) -> Kind:
        kind = self.sources[name] = super()._kind(name)
        if kind.ragged or kind.dtype.kind == "O":
            held = "arrays that differ in length" if kind.ragged else "strings or bytes"
            raise FeedError(f"column {name!r} holds {held}: windows have numbers, and arrays of one shape")
        return kind


class WindowRows(ComposedRows):
    """The windows of one worker's rows. The rows of a key are sorted here, in whatever order they came."""

    def __init__(self, source: Shard, selection: WindowSelection) -> None:
        super().__init__(source)
        self._selection, window = selection, selection.window
        self._keys: dict[int, Any] = {}  # by their hashes
        self._order, self._first, self._missing = np.arange(0), np.arange(0), np.arange(0)
        if source.rows:
            columns = {name: _column(source, name) for name in (*window.keys, window.order)}
            for name in window.keys:
                if pa.types.is_floating(columns[name].type):  # of which -0.0 and 0.0 are one key for Spark
                    raise FeedError(f"the key {name!r} holds fractions, which need not be equal to be alike: round it")
            codes = _codes([columns[name] for name in window.keys])
            self._make(window, columns, codes)
        self.facts = np.array(sorted(self._keys), np.uint64).tobytes()

    def _make(self, window: Window, columns: Mapping[str, pa.ChunkedArray], codes: Numbers) -> None:
        values, gap = _values(window, columns[window.order])
        order = np.lexsort((values, codes))
        codes, values = codes[order], values[order]
        is_new, steps = codes[1:] != codes[:-1], np.diff(values)
        firsts = order[np.flatnonzero(np.concatenate([[True], is_new]))]
        named = pa.table({str(number): columns[name] for number, name in enumerate(window.keys)}).take(pa.array(firsts))
        for key in zip(*(each.to_pylist() for each in named.columns), strict=True):
            digest = blake2b(repr(key).encode(), digest_size=8).digest()
            self._keys[int.from_bytes(digest, "little")] = _shown(window, key)
        if len(equal := np.flatnonzero(~is_new & (steps == 0))):
            row = int(order[equal[0]])
            key = _shown(window, tuple(columns[name][row].as_py() for name in window.keys))
            raise FeedError(
                f"{window.order!r} is {columns[window.order][row].as_py()!r} in two rows of the key {key!r}: which "
                "comes first is unknown"
            )
        ends = np.flatnonzero(is_new if gap is None else is_new | (steps > gap)) + 1
        begin = np.concatenate([[0], ends])
        size = np.diff([*begin, len(order)])
        count = np.maximum(0, (size - window.span) // window.stride + 1)
        if window.short == "pad":
            count[(window.horizon < size) & (size < window.span)] = 1
        run = np.repeat(np.arange(len(begin)), count)
        later = np.repeat(np.cumsum(count), count) - np.arange(len(run)) - 1  # windows of the same run
        self._order = order
        self._first = begin[run] + size[run] - window.span - window.stride * later
        self._missing = np.maximum(0, window.span - size[run])

    @property
    def rows(self) -> int:
        """Number of windows."""
        return len(self._first)

    def check_workers(self, facts: Sequence[Any], index: int) -> None:
        """Raise `FeedError` if two workers have rows of one key, whose windows none of them could make."""
        own, window = np.frombuffer(facts[index], np.uint64), self._selection.window
        for other, theirs in enumerate(facts):
            both = np.intersect1d(own, np.frombuffer(theirs, np.uint64)) if other != index else own[:0]
            if len(both):
                names = ", ".join(map(repr, window.keys))
                raise FeedError(
                    f"{self._selection.call}: rows of the key {self._keys[int(both[0])]!r} are on workers {index} and "
                    f"{other}: bring those of each key together, by cluster.train(df.repartition({names}), "
                    "rebalance=False)"
                )

    def bytes_per_row(self, names: Iterable[str]) -> float:
        """Return the size of a window's values, each row of which other windows have too."""
        length, horizon = self._selection.window.length, self._selection.window.horizon
        after = {name.removesuffix(_AFTER) for name in names if name.endswith(_AFTER)}
        inside = set(names) - {name + _AFTER for name in after} - {PRESENT}
        return length * self._source.bytes_per_row(inside) + horizon * self._source.bytes_per_row(after)

    def epoch(
        self,
        selection: WindowSelection,
        seed: Sequence[int] | None,
        batch_rows: int,  # noqa: ARG002 - any windows make a step
    ) -> tuple[Reader, Order]:
        """Return what gathers windows, and their order."""
        reader = _WindowReader(self._source, selection, self._order, self._first, self._missing)
        return reader, row_order(self.rows, seed)


class _WindowReader(Reader):
    """Gathers the rows of windows; those that are missing come first."""

    def __init__(
        self, source: Shard, selection: WindowSelection, order: Numbers, first: Numbers, missing: Numbers
    ) -> None:
        window, weight = selection.window, selection.sample_weight
        self._order, self._first, self._missing = order, first, missing
        self._length, self._horizon = window.length, window.horizon
        self._pads = window.short == "pad"

        def reader(names: Sequence[str]) -> Reader:
            return source.reader({name: selection.sources[name] for name in names})

        self._inside = reader([name for name in names_in(selection.features) if name in selection.sources])
        self._after = reader(names_in(selection.label))
        self._last = reader([] if weight is None else [weight])

    def stretch(self, numbers: Numbers) -> int:
        """Return how many windows to gather at once."""
        return len(numbers)

    def take(self, numbers: Numbers, empty: Allocate = np.empty) -> dict[str, Array | Ragged]:
        """Return windows by their numbers."""
        first, missing = self._first[numbers], self._missing[numbers]
        place = np.arange(self._length)
        rows = np.maximum(first[:, None] + place, (first + missing)[:, None])
        found: dict[str, Array | Ragged] = {}
        absent = place < missing[:, None] if self._pads and missing.any() else None
        for name, values in self._inside.take(self._order[rows.ravel()], empty).items():
            found[name] = self._folded(values, self._length, absent)
        if self._horizon:
            rows = (first + self._length)[:, None] + np.arange(self._horizon)
            for name, values in self._after.take(self._order[rows.ravel()], empty).items():
                found[name + _AFTER] = self._folded(values, self._horizon)
        found |= self._last.take(self._order[first + self._length - 1], empty)
        if self._pads:
            found[PRESENT] = place >= missing[:, None]
        return found

    def _folded(self, values: Any, count: int, absent: Any = None) -> Array:
        """Return rows as windows of so many, with zeros for those that are absent."""
        folded: Array = values.reshape(-1, count, *values.shape[1:])
        if absent is not None:
            folded = np.array(folded)
            folded[absent] = 0
        return folded


def _column(source: Shard, name: str) -> pa.ChunkedArray:
    column = pa.chunked_array([batch.column(name) for batch in source.batches])
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise FeedError(f"column {name!r}, by which windows are made, is null in row {row} of this worker")
    return column


def _codes(columns: Sequence[pa.ChunkedArray]) -> Numbers:
    """Return a number for each row, the same for rows with the same values."""
    found: Numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = pc.dictionary_encode(column).unify_dictionaries()
        numbers = np.concatenate([chunk.indices.to_numpy(zero_copy_only=False) for chunk in codes.chunks])
        _, found = np.unique(found * (int(numbers.max()) + 1) + numbers, return_inverse=True)
    return found


def _values(window: Window, column: pa.ChunkedArray) -> tuple[Numbers, float | None]:
    """Return numbers in the order of a column's values, and the largest step between two of a window."""
    kind, gap = column.type, window.gap
    if pa.types.is_date(kind):
        days = column.cast(pa.date32()).cast(pa.int32()).to_numpy().astype(np.int64)
        return days, gap / timedelta(days=1) if isinstance(gap, timedelta) else gap
    if pa.types.is_timestamp(kind):
        moments = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_numpy()
        seconds = gap.total_seconds() if isinstance(gap, timedelta) else gap
        return moments, None if seconds is None else seconds * 1e6
    if isinstance(gap, timedelta):
        raise FeedError(f"gap={gap!r}: column {window.order!r} is of type {kind}: give a number")
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise FeedError(f"column {window.order!r} is of type {kind}: order windows by numbers, dates or timestamps")
    values = column.to_numpy()
    if np.isnan(values).any():
        raise FeedError(f"column {window.order!r}, by which windows are ordered, holds NaN")
    return values.astype(np.int64) if values.dtype.kind in "iu" and values.dtype != np.uint64 else values, gap


def _shown(window: Window, key: tuple[Any, ...]) -> Any:
    return key[0] if isinstance(window.key, str) else key
