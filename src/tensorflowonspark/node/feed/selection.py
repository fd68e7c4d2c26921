"""Selection of the columns that a program takes, their dtypes, and their structure."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypedDict, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark.columns import Array, Kind, Ragged, kind_of, merge
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import SplitManifest

__all__ = ["WEIGHT", "Batch", "Options", "Selection", "real_part"]

WEIGHT = "sample_weight"  # Keras's name for it
_BY_COLUMN = ("shapes", "dtypes", "fill")
Batch = tuple[dict[str, Array | Ragged], npt.NDArray[np.bool_]]  # columns, and which rows are real


class Options(TypedDict, total=False):
    """What a program can say about the elements that it wants; `Feed.dataset` says what each means."""

    features: str | Sequence[str] | None
    label: str | Sequence[str] | None
    sample_weight: str | None
    shapes: Mapping[str, Sequence[int | None]] | None
    dtypes: Mapping[str, str] | None
    fill: Mapping[str, Any] | None


class Selection:
    """The columns that a program takes.

    Parameters
    ----------
    contents : Contents
        What the split holds, on all workers.
    options : Options
        What the program asks for.
    inference : bool
        Whether it is only about features; then no label is looked for, and a single column comes by itself.
    """

    def __init__(self, contents: SplitManifest, options: Options, *, inference: bool = False) -> None:
        self._schema = pa.ipc.read_schema(pa.py_buffer(contents.schema)) if contents.schema else pa.schema([])
        self._columns = list(self._schema.names)
        self._options = options
        self._refuse_unknown_options()
        features, label = options.get("features"), options.get("label")
        if features is None and label is None and "label" in self._columns and not inference:
            label = "label"
        if features is None and inference and len(self._columns) == 1:
            features = self._columns[0]
        self.weight = options.get("sample_weight")
        self.label = None if label is None else self._structure(label)
        self.features = self._features(features)
        used = dict.fromkeys([*_names(self.features), *_names(self.label), *_names(self.weight)])
        self._refuse_strangers(used)
        self._seen = contents.columns
        self.kinds = {name: self._kind(name) for name in used}
        self._refuse_misfits(inference)

    def _features(self, features: str | Sequence[str] | None) -> str | list[str]:
        if features is not None:
            return self._structure(features)
        if self.label is not None and "features" in self._columns:
            return "features"
        others = {*_names(self.label), self.weight}
        return [name for name in self._columns if name not in others]

    def _structure(self, asked: str | Sequence[str]) -> str | list[str]:
        """Return a column's name, or a list of names; a struct's name stands for all its fields."""
        if isinstance(asked, str):
            return asked if asked in self._columns else (self._fields(asked) or asked)
        return [name for each in asked for name in ([each] if each in self._columns else self._fields(each) or [each])]

    def _fields(self, struct: str) -> list[str]:
        return [name for name in self._columns if name.startswith(f"{struct}.")]

    def _refuse_unknown_options(self) -> None:
        known = list(Options.__annotations__)
        for option, value in self._options.items():
            if option not in known:
                raise FeedError(f"there is no option {option!r} for the elements of a feed, but {', '.join(known)}")
            if option in _BY_COLUMN and not isinstance(value or {}, Mapping):
                raise FeedError(f"{option}={value!r}: expected a dict by column, as in {{'x': ...}}")

    def _refuse_strangers(self, used: Mapping[str, None]) -> None:
        for name in used:
            if name not in self._columns:
                raise FeedError(f"there is no column {name!r} in the DataFrame that was fed; it has {self._columns}")
        for option in _BY_COLUMN:
            for name in self._by_column(option):
                if name not in used:
                    raise FeedError(f"{option} speaks of column {name!r}, and the program takes {list(used)}")

    def _refuse_misfits(self, inference: bool) -> None:
        if self.features == []:
            raise FeedError(f"no column is left for the features; the DataFrame that was fed has {self._columns}")
        if self.weight is not None and not _is_number(self.kinds[self.weight]):
            raise FeedError(f"sample_weight={self.weight!r}: expected a column of single numbers")
        if self.label is None and not inference and WEIGHT in _names(self.features) and self.weight != WEIGHT:
            raise FeedError(
                f"column {WEIGHT!r} would stand where the rows' weights do: set sample_weight={WEIGHT!r} if it has them, or "
                "take other features"
            )

    def _by_column(self, option: str) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self._options.get(option) or {})

    def _kind(self, name: str) -> Kind:
        shape, to, fill = (self._by_column(option).get(name) for option in _BY_COLUMN)
        return kind_of(name, self._schema.field(name).type, self._seen[name], shape=shape, cast=to, fill=fill)

    def check(self, contents: SplitManifest) -> None:
        """Refuse further rows of a stream that are not of the same kinds.

        Raises
        ------
        FeedError
            It names the column, and a row that shows it.
        """
        self._seen = merge((self._seen, contents.columns))
        for name in self.kinds:
            self._kind(name)

    def arrange(self, values: Mapping[str, Any], weights: Any) -> Any:
        """Return columns (arrays, tensors or their specs) in the structure that the program takes."""
        x = self.pick_features(values)
        if self.label is None:
            by_name = x if isinstance(x, dict) else {str(self.features): x}
            return {**by_name, WEIGHT: weights}
        return x, _pick(self.label, values), weights

    def pick_features(self, values: Mapping[str, Any]) -> Any:
        """Return the features alone, in their structure."""
        return _pick(self.features, values)

    def weights(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the rows' weights: the user's or 1 for real rows, and -0.0 for those that fill up.

        A negative zero does in a loss what zero does, and tells the metrics, which take no weights, what to leave out.
        """
        values, real = batch
        own = 1 if self.weight is None else cast("Array", values[self.weight]).reshape(-1)
        return np.where(real, own + 0.0, -0.0).astype(np.float32)  # + 0.0: no weight of the user is a negative zero


def real_part(batch: Batch) -> Batch:
    """Return a batch without the rows that fill it up, which are its last."""
    values, real = batch
    rows = int(real.sum())
    return {name: each[:rows] for name, each in values.items()}, real[:rows]


def _is_number(kind: Kind) -> bool:
    return kind.dtype.kind in "biuf" and not kind.ragged and prod(kind.inner) == 1


def _names(structure: str | Sequence[str] | None) -> list[str]:
    return [structure] if isinstance(structure, str) else list(structure or ())


def _pick(structure: str | Sequence[str], values: Mapping[str, Any]) -> Any:
    return values[structure] if isinstance(structure, str) else {name: values[name] for name in structure}
