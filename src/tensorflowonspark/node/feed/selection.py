"""Selection of the columns that a program takes, their dtypes, and their structure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark.columns import Array, Kind, Ragged, kind_of, merge
from tensorflowonspark.errors import FeedError, SpecError, did_you_mean
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.mixture import Mixture

if TYPE_CHECKING:
    from tensorflowonspark.node.feed.row_window import Window

WEIGHT = "sample_weight"  # Keras's name
_BY_COLUMN = ("shapes", "dtypes", "fill")
Batch = tuple[dict[str, Array | Ragged], npt.NDArray[np.bool_]]  # columns, and which rows are real
text_columns: dict[str, None] = {}  # names of those of strings that this process has taken, for its errors


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """The columns that a program takes, and their shapes and dtypes. After a change run ``make keywords``.

    Parameters
    ----------
    features : str or sequence of str, optional
        One column, which comes as a tensor, or several, which come as a dict by name; a struct's name stands for
        all its fields. The default is the column ``features`` if it exists beside a label, and otherwise all
        columns but `label` and `sample_weight`.
    label : str or sequence of str, optional
        The label's column, or those of several outputs. If neither it nor `features` is given, the column
        ``label`` if it exists.
    sample_weight : str, optional
        A column of weights: one number per row, or an array of one length, with one for each of its time steps.
        They are float32, or float64 with that dtype in `dtypes`.
    shapes : mapping, optional
        The shape of one row's value, by column, as in ``{"image": (28, 28, 1)}``: flat arrays, and the bytes of
        binary columns (as uint8; those in arrays only with a dtype), are folded into it. ``(None,)`` makes a
        ``tf.RaggedTensor`` of arrays that differ in length. By default all arrays of a column must have one
        length, which is its shape.
    dtypes : mapping, optional
        The dtype to convert to, by column, as in ``{"image": "float32"}``.
    fill : mapping, optional
        The value that replaces a null, by column; a null array of a ragged column becomes empty. By default a null
        is an error.
    source : str, optional
        With rows of a mixture, the name under which the features have the number of each row's source: int32, from 0 in
        the order in which the sources were given.
    only : str, optional
        With rows of a mixture, the name of a source: the rows are its own, each once in an epoch, as to validate on
        each source by itself. They are copied into memory.
    """

    features: str | Sequence[str] | None = None
    label: str | Sequence[str] | None = None
    sample_weight: str | None = None
    shapes: Mapping[str, Sequence[int | None]] | None = None
    dtypes: Mapping[str, npt.DTypeLike] | None = None
    fill: Mapping[str, Any] | None = None
    source: str | None = None
    only: str | None = None


@dataclass(frozen=True, kw_only=True)
class ComposedOptions(FeatureOptions):
    """The columns that a program takes, and of what its rows are made. After a change run ``make keywords``.

    Parameters
    ----------
    pack : mapping, optional
        Columns of arrays that differ in length, with the length into which they are packed, as in
        ``{"tokens": 2048}``: a row of a batch then has several sequences, one after the other. The columns have arrays
        of one length in each row, as tokens and the labels of each. The features get ``segment_ids`` (from 1 on, 0 is
        padding) and ``positions`` in the sequence, for attention masks; other columns have their row's value at each
        token, and so have the weights, which are 0 at padding. `batch_size` counts packed rows. For rows that are kept
        (the default cache).
    bucket : mapping, optional
        Columns of arrays that differ in length, with the lengths to which they are padded, as in
        ``{"tokens": [128, 256, 512]}``: a step then has rows of about one length, padded with zeros to the smallest of
        them that fits. The columns have arrays of one length in each row. The features get ``present``, which is False
        at padding; where labels are such columns, each value has a weight. For rows that are kept.
    too_long : {"error", "cut", "split"}
        With `pack` or `bucket`, the treatment of a sequence that is longer: an error that names it, what exceeds the
        length is left out, or, with `pack`, the rest becomes a sequence of its own.
    window : Window, optional
        Windows over the rows of each key, in the order of a column: a row of a batch then has the features of the rows
        of a window, and the labels of those that follow it, each as an array with them in the first dimension. Its
        weight is that of the window's last row. `batch_size` counts windows. Each key must have its rows on one worker,
        as by ``cluster.train(df.repartition("store"), rebalance=False)``. For rows that are kept (the default cache).
    """

    pack: Mapping[str, int] | None = None
    bucket: Mapping[str, Sequence[int]] | None = None
    too_long: str = "error"
    window: "Window | None" = None


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(ComposedOptions):
    """What a program asks of its passes over the rows: the columns and the order. After a change run ``make keywords``.

    Parameters
    ----------
    shuffle : bool
        Whether each epoch has its own order: a full shuffle of this worker's rows; for a stream, of the rows of
        each partition. (Whether rows move between workers is a setting of `Cluster.train`.)
    seed : int
        Seed of the orders.
    first_step : int
        Steps taken before, for a loop that resumes from a checkpoint (the result of ``restore``, if each step takes
        one batch): the first pass is the rest of the epoch in which that step was, in that epoch's order.
    on_epoch_end : callable, optional
        Called with the epoch's number, from 0, when all rows of an epoch have been handed out.
    """

    shuffle: bool = True
    seed: int = 0
    first_step: int = 0
    on_epoch_end: Callable[[int], None] | None = None

    @property
    def order_seed(self) -> int | None:
        """The seed; None if the rows keep their order."""
        return self.seed if check_shuffle(self.shuffle) else None


def check_shuffle(shuffle: object) -> bool:
    """Return whether a program wants its rows shuffled.

    A word, as ``"global"``, is a `SpecError`: that is a matter of the feed.
    """
    if isinstance(shuffle, str):
        raise SpecError(
            f"shuffle={shuffle!r}: expected True or False, whether each epoch has its own order of this worker's rows; "
            "whether rows move between workers is a setting of cluster.train"
        )
    return bool(shuffle)


class Selection:
    """The columns of a feed that a program takes, and their structure.

    For inference only features are taken: no column becomes the label, and a single column is not put into a dict. A
    column that does not exist, or whose values do not fit, is a `FeedError`.
    """

    longest = 0  # the largest size of a dimension that has another one in each batch, where any has

    def __init__(self, manifest: SplitManifest, options: FeatureOptions, *, inference: bool = False) -> None:
        self._schema = pa.ipc.read_schema(pa.py_buffer(manifest.schema)) if manifest.schema else pa.schema([])
        self._source = self._source_column(manifest, options.source)
        self.only = self._only(manifest, options.only)  # the rows to take; None: all
        hidden = () if manifest.mixture is None else (manifest.mixture.column,)
        self._columns = {name: None for name in self._schema.names if name not in hidden}
        self._options = options
        self._check_options()
        features, label = options.features, options.label
        if features is None and label is None and "label" in self._columns and not inference:
            label = "label"
        if features is None and inference and len(self._columns) == 1:
            (features,) = self._columns
        self.sample_weight = options.sample_weight
        self.label = None if label is None else self._structure(label)
        self.features = self._features(features)
        used = dict.fromkeys([*names_in(self.features), *names_in(self.label), *names_in(self.sample_weight)])
        self._check_names(used)
        self._summaries = manifest.columns
        self.kinds = {name: self._kind(name) for name in (*used, *self._source.values())}
        self._check_kinds(inference)
        text_columns.update((name, None) for name, kind in self.kinds.items() if kind.dtype.kind == "O")

    def _source_column(self, manifest: SplitManifest, name: str | None) -> dict[str, str]:
        """Return the column of the rows' sources, by the name that the program gives it; {} if it wants none."""
        if name is None:
            return {}
        return {name: _mixture(manifest, f"source={name!r}").column}

    def _only(self, manifest: SplitManifest, name: str | None) -> tuple[str, int] | None:
        """Return the column of the rows' sources, and the number of the one that the program wants."""
        if name is None:
            return None
        mixture = _mixture(manifest, f"only={name!r}")
        if name not in mixture.names:
            meant = did_you_mean(name, mixture.names)
            raise FeedError(f"only={name!r}: there is no such source{meant}: {list(mixture.names)}")
        return mixture.column, mixture.names.index(name)

    def _features(self, features: str | Sequence[str] | None) -> str | list[str]:
        if features is not None:
            return self._structure(features)
        if self.label is not None and "features" in self._columns:
            return "features"
        others = {*names_in(self.label), self.sample_weight}
        return [name for name in self._columns if name not in others]

    def _structure(self, names: str | Sequence[str]) -> str | list[str]:
        """Return a column's name, or a list of names; a struct's name is replaced by its fields."""
        if isinstance(names, str):
            return names if names in self._columns else (self._fields(names) or names)
        return [name for each in names for name in ([each] if each in self._columns else self._fields(each) or [each])]

    def _fields(self, struct: str) -> list[str]:
        return [name for name in self._columns if name.startswith(f"{struct}.")]

    def _check_options(self) -> None:
        for option in _BY_COLUMN:
            value = getattr(self._options, option)
            if not isinstance(value or {}, Mapping):
                raise FeedError(f"{option}={value!r}: expected a dict by column, as in {{'x': ...}}")

    def _check_names(self, used: Mapping[str, None]) -> None:
        for name in used:
            if name not in self._columns:
                meant = did_you_mean(name, self._columns)
                raise FeedError(f"there is no column {name!r}{meant}: the rows have {list(self._columns)}")
        for option in _BY_COLUMN:
            for name in self._by_column(option):
                if name not in used:
                    raise FeedError(f"{option} names column {name!r}, but the program takes {list(used)}")

    def _check_kinds(self, inference: bool) -> None:
        if self.features == []:
            raise FeedError(f"no column is left for the features: the rows have {list(self._columns)}")
        for name in set(self._source) & {*names_in(self.features), WEIGHT}:
            raise FeedError(f"source={name!r}: another feature has that name: choose another one")
        weight = self.sample_weight
        if weight is not None and not _are_numbers(self.kinds[weight]):
            raise FeedError(
                f"sample_weight={weight!r}: expected a column of numbers: one for each row, or an array of one length, "
                "with one for each of its time steps or pixels"
            )
        if self.label is None and not inference and WEIGHT in names_in(self.features) and weight != WEIGHT:
            raise FeedError(
                f"column {WEIGHT!r} would take the place of the rows' weights: pass sample_weight={WEIGHT!r} if it "
                "holds them, or take other features"
            )

    def _by_column(self, option: str) -> Mapping[str, Any]:
        return getattr(self._options, option) or {}

    def _kind(self, name: str) -> Kind:
        shape, to, fill = (self._by_column(option).get(name) for option in _BY_COLUMN)
        return kind_of(name, self._schema.field(name).type, self._summaries[name], shape=shape, cast=to, fill=fill)

    def check(self, manifest: SplitManifest) -> None:
        """Check that further rows of a stream are of the same kinds.

        A column that is not is a `FeedError`, with a row.
        """
        self._summaries = merge((self._summaries, manifest.columns))
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
        x = _pick(self.features, values)
        if not self._source:
            return x
        by_name = x if isinstance(x, dict) else {str(self.features): x}
        return {**by_name, **{name: values[column] for name, column in self._source.items()}}

    def finished(self, batch: Batch) -> Batch:
        """Return a batch as the program gets it."""
        return batch

    @property
    def weight_shape(self) -> tuple[int | None, ...]:
        """The shape of a row's weight: ``()`` for one number, or that of an array of them."""
        inner = () if self.sample_weight is None else self.kinds[self.sample_weight].inner
        return () if prod(inner) == 1 else inner

    @property
    def weight_dtype(self) -> str:
        """The dtype of the weights: float32, unless the program asks for float64."""
        name = self.sample_weight
        asked = name is not None and name in self._by_column("dtypes") and self.kinds[name].dtype == np.float64
        return "float64" if asked else "float32"

    def weights(self, batch: Batch) -> Array:
        """Return the rows' weights: the user's, or 1, for real rows, and -0.0 for padding.

        A negative zero counts as zero in a loss, and marks the rows to leave out for metrics, which take no weights.
        """
        values, real = batch
        shape = len(real), *self.weight_shape
        weights = 1 if self.sample_weight is None else cast("Array", values[self.sample_weight]).reshape(shape)
        real = real.reshape(-1, *(1 for _ in self.weight_shape))
        return np.where(real, weights + 0.0, -0.0).astype(
            self.weight_dtype
        )  # + 0.0: no weight of the user is a negative zero


def _mixture(manifest: SplitManifest, option: str) -> Mixture:
    if manifest.mixture is None:
        raise FeedError(f"{option}: the rows are not those of a mixture: leave it out")
    return manifest.mixture


def real_rows(batch: Batch) -> Batch:
    """Return a batch without its padding, which comes last."""
    values, real = batch
    rows = int(real.sum())
    return {name: each[:rows] for name, each in values.items()}, real[:rows]


def _are_numbers(kind: Kind) -> bool:
    return kind.dtype.kind in "biuf" and not kind.row_splits and prod(kind.inner) > 0


def names_in(structure: str | Sequence[str] | None) -> list[str]:
    """Return the columns of a structure: none, one, or several."""
    return [structure] if isinstance(structure, str) else list(structure or ())


def _pick(structure: str | Sequence[str], values: Mapping[str, Any]) -> Any:
    return values[structure] if isinstance(structure, str) else {name: values[name] for name in structure}
