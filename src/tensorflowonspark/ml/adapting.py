"""``adapt`` of preprocessing layers over a DataFrame: Spark computes the state, and no node is started.

Spark's tasks count, the driver merges: moments for a `Normalization`, counts of tokens for lookups and a
`TextVectorization`, and approximate quantiles for a `Discretization`. What becomes of them is left to Keras
(`keras.preprocessing`).
"""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tensorflowonspark.columns import select
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.preprocessing import (
    Moments,
    TokenCounts,
    family_of,
    fixed_reason,
    lookup_of,
    set_moments,
    set_tokens,
)
from tensorflowonspark.ml.counting import CountTokens, FindMoments, Numbers, Splitter
from tensorflowonspark.ml.layers import (
    adaptable_layers,
    columns_of_inputs,
    input_names,
    source_inputs,
    unadapted_layers,
)
from tensorflowonspark.ml.params import missing_columns
from tensorflowonspark.ml.predict import TakenColumns
from tensorflowonspark.ml.serialization import is_model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["adapt", "adapted"]

Layer = TypeVar("Layer")

_ADVICE = "for adapt, nulls are declared with fill, shapes with shapes, and other dtypes with dtypes"
# An error of ours in a task, as Spark reports it.
_OURS = re.compile(r"tensorflowonspark\.errors\.\w+: (.+)$", re.MULTILINE)
_changing = RLock()  # held while a model that the user keeps is not as the user has it


def adapt(
    layer_or_model: Layer,
    df: "DataFrame",
    columns: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    *,
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
) -> Layer:
    """Adapt Keras's preprocessing layers to a DataFrame's rows, by Spark, in the driver.

    Equal to the layer's own ``adapt`` in one process over all rows. Spark computes it in one pass for each layer,
    with any number of rows; only the state comes to the driver. The boundaries of a ``Discretization`` are those of
    ``DataFrame.approxQuantile`` with the layer's ``epsilon`` as relative error: the rank of each differs from the
    exact one by at most ``epsilon`` times the number of values; NaNs are ignored.

    Parameters
    ----------
    layer_or_model : keras.Layer or keras.Model
        A ``Normalization``, ``Discretization``, ``StringLookup``, ``IntegerLookup`` or ``TextVectorization``, or a
        model with such layers: then those that have no state yet.
    df : DataFrame
        The rows.
    columns : str, sequence of str, or mapping, optional
        For a layer, its column, or several columns of numbers that it takes side by side; by default the only column
        of the DataFrame, or the one of the layer's name. For a model, the columns by layer, as in
        ``{"layer_name": "column"}``; by default a layer that stands directly behind an input takes the column of the
        input's name.
    shapes, dtypes, fill : mapping, optional
        The shape of one row's value, the dtype and what stands for a null, by column, as for `Feed.dataset`.

    Returns
    -------
    keras.Layer or keras.Model
        What was given.

    Raises
    ------
    SpecError
        If a layer can't adapt, or it is not clear to which column.

    Examples
    --------
    >>> import keras
    >>> df = spark.createDataFrame([("b", 1.0), ("a", 2.0), ("b", 6.0)], "word string, x double")
    >>> adapt(keras.layers.StringLookup(), df, "word").get_vocabulary() == ["[UNK]", "b", "a"]
    True
    >>> float(adapt(keras.layers.Normalization(), df, "x").mean[0, 0])
    3.0
    """
    by_column = {"shapes": shapes or {}, "dtypes": dtypes or {}, "fill": fill or {}}
    if family_of(layer_or_model):
        if isinstance(columns, Mapping):
            columns = _of_layer(columns, [layer_or_model])[0][1]
        work = [(layer_or_model, _own_columns(layer_or_model, df, columns))]
    elif is_model(layer_or_model):
        if columns is not None and not isinstance(columns, Mapping):
            raise SpecError(f"columns={columns!r}: for a model, say it by layer, as in {{'layer_name': 'column'}}")
        work = _of_model(layer_or_model, df, columns or {})
    else:
        raise SpecError(
            f"adapt({layer_or_model!r}): expected a Keras model, or one of Keras's layers Normalization, "
            "Discretization, StringLookup, IntegerLookup and TextVectorization"
        )
    for layer, names in work:
        _check(layer, df, names)
    states = [(layer, _computed(layer, df, names, by_column)) for layer, names in work]
    for layer, state in states:
        _set(layer, state)
    return layer_or_model


@contextmanager
def adapted(
    model: Any, df: "DataFrame", features: Sequence[str], by_column: Mapping[str, Mapping[str, Any]]
) -> Iterator[None]:
    """Have a model's layers that have no state be adapted for as long as the context lasts.

    Parameters
    ----------
    model : keras.Model
        The user's, which is afterwards as it was: another fit has other rows.
    df : DataFrame
        The rows to train on.
    features : sequence of str
        The columns that the model is given.
    by_column : mapping
        Shapes, dtypes and fill, by column.
    """
    given = columns_of_inputs(input_names(model), features)
    work = []
    for layer in unadapted_layers(model):
        names = _columns_of_sources(source_inputs(model, layer), given)
        if names and (family_of(layer) != "Normalization" or layer.built):  # others adapt on the nodes
            _check(layer, df, names)
            work.append((layer, _computed(layer, df, names, by_column)))
    with _changing:
        before = [(layer, _Undo(layer)) for layer, _ in work]
        try:
            for layer, state in work:
                _set(layer, state)
            yield
        finally:
            for _, undo in before:
                undo()


def _own_columns(layer: Any, df: "DataFrame", columns: str | Sequence[str] | None) -> list[str]:
    if columns is not None:
        return [columns] if isinstance(columns, str) else list(columns)
    if len(df.columns) == 1 or layer.name in df.columns:
        return [layer.name if layer.name in df.columns else df.columns[0]]
    raise SpecError(f"adapt: say to which column the layer {layer.name!r} adapts; the DataFrame has {df.columns}")


def _of_model(model: Any, df: "DataFrame", columns: Mapping[str, str | Sequence[str]]) -> list[tuple[Any, list[str]]]:
    work = _of_layer(columns, adaptable_layers(model))
    named = [layer for layer, _ in work]
    inputs = input_names(model)
    given = {name: [name] for name in inputs if name in df.columns}
    if len(inputs) == len(df.columns) == 1:
        given = {inputs[0]: list(df.columns)}
    for layer in unadapted_layers(model):
        if any(layer is each for each in named):
            continue
        sources = source_inputs(model, layer)
        names = _columns_of_sources(sources, given)
        if not names:
            why = (
                "does not take an input of the model as it is"
                if sources is None
                else f"takes the model's input {', '.join(map(repr, sources))}, of which the DataFrame has no column"
            )
            raise SpecError(
                f"the layer {layer.name!r} {why}: say to which column it adapts, as in "
                f"columns={{{layer.name!r}: {df.columns[0]!r}}}; the DataFrame has {df.columns}"
            )
        work.append((layer, names))
    return work


def _of_layer(columns: Mapping[str, str | Sequence[str]], layers: Sequence[Any]) -> list[tuple[Any, list[str]]]:
    """Return the layers that are named, with their columns."""
    by_name = {layer.name: layer for layer in layers}
    for name in columns:
        if name not in by_name:
            raise SpecError(f"columns speaks of a layer {name!r}; the layers that can adapt are {sorted(by_name)}")
    return [(by_name[name], [each] if isinstance(each, str) else list(each)) for name, each in columns.items()]


def _columns_of_sources(sources: Sequence[str] | None, given: Mapping[str, Sequence[str]]) -> list[str]:
    if not sources or any(name not in given for name in sources):
        return []
    return [column for name in sources for column in given[name]]


def _check(layer: Any, df: "DataFrame", columns: list[str]) -> None:
    """Refuse what can't be adapted, before Spark begins."""
    fixed = fixed_reason(layer)
    if fixed:
        raise SpecError(f"the layer {layer.name!r} can't adapt: {fixed}")
    missing_columns(df, columns)
    if family_of(layer) in ("IndexLookup", "TextVectorization"):
        if len(columns) > 1:
            raise SpecError(f"the layer {layer.name!r} adapts to one column, not to {columns}")
        kind = _leaf(df.schema[columns[0]].dataType).typeName()
        integers = lookup_of(layer).vocabulary_dtype == "int64"
        if kind not in (_INTEGERS if integers else _STRINGS):
            wanted = "numbers" if integers else "strings"
            raise SpecError(
                f"the layer {layer.name!r} ({type(layer).__name__}) adapts to {wanted}, and the column {columns[0]!r} "
                f"has type {df.schema[columns[0]].dataType.simpleString()}: cast it in Spark"
            )


_INTEGERS = ("byte", "short", "integer", "long", "boolean", "float", "double", "decimal")  # cut off, as Keras does
_STRINGS = ("string", "char", "varchar", "binary")


def _leaf(kind: Any) -> Any:
    return _leaf(kind.elementType) if kind.typeName() == "array" else kind


def _depth(kind: Any) -> int:
    return 1 + _depth(kind.elementType) if kind.typeName() == "array" else 0


def _computed(layer: Any, df: "DataFrame", columns: list[str], by_column: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a layer's state over all rows.

    Raises
    ------
    SpecError
        If a task found a value that the layer can't be given.
    """
    try:
        return _state(layer, df, columns, by_column)
    except Exception as error:
        ours = _OURS.search(str(error))
        if isinstance(error, SpecError) or ours is None:
            raise
        raise SpecError(f"the layer {layer.name!r} can't adapt: {ours[1]}") from error


def _state(layer: Any, df: "DataFrame", columns: list[str], by_column: Mapping[str, Mapping[str, Any]]) -> Any:
    family = family_of(layer)
    own: dict[str, dict[str, Any]] = {
        option: {name: value for name, value in values.items() if name in columns}
        for option, values in by_column.items()
    }
    # By their places: of names with dots Spark makes fields when they go to Python.
    frame = select(df, columns).toDF(*[f"column_{place}" for place in range(len(columns))])
    if family in ("IndexLookup", "TextVectorization"):
        depth = _depth(df.schema[columns[0]].dataType)
        if depth:
            own["shapes"].setdefault(columns[0], (None,) * depth)
        return _token_counts(layer, frame, TakenColumns(tuple(columns), own, advice=_ADVICE))
    if family == "Normalization" and layer.built and len(columns) == 1:
        built = tuple(getattr(layer, "_build_input_shape", None) or ())[1:]
        if built and None not in built and df.schema[columns[0]].dataType.typeName() in ("array", "binary", "udt"):
            own["shapes"].setdefault(columns[0], built)
    taken = TakenColumns(tuple(columns), own, advice=_ADVICE)
    return _moments(layer, frame, taken) if family == "Normalization" else _quantiles(layer, frame, taken)


def _moments(layer: Any, frame: "DataFrame", taken: TakenColumns) -> Moments:
    rows = frame.mapInArrow(FindMoments(taken, tuple(layer.axis)), "moments binary").collect()
    parts = [pickle.loads(bytes(row.moments)) for row in rows]
    if not parts:
        raise _no_rows(layer)
    return Moments.merged(parts)


def _quantiles(layer: Any, frame: "DataFrame", taken: TakenColumns) -> list[float]:
    """Return as many boundaries as Keras finds, at the same places."""
    step = 1.0 / layer.num_bins
    places = np.minimum(step + np.arange(0.0, 1.0, step), 1.0)[:-1].tolist()
    values = frame.mapInArrow(Numbers(taken), "value double")
    found = values.approxQuantile("value", places or [0.5], float(layer.epsilon))
    if not found:
        raise _no_rows(layer)
    return [float(np.float32(each)) for each in found[: len(places)]]


def _token_counts(layer: Any, frame: "DataFrame", taken: TakenColumns) -> TokenCounts:
    """Return the counts of the tokens that make the vocabulary, and the number of all rows."""
    from pyspark.sql import functions as f

    lookup = lookup_of(layer)
    integers = lookup.vocabulary_dtype == "int64"
    splitter = Splitter.of(layer) if family_of(layer) == "TextVectorization" else None
    task = CountTokens(taken, integers, lookup.output_mode == "tf_idf", splitter)
    token_type = "bigint" if integers else "binary"
    parts = frame.mapInArrow(task, f"token {token_type}, count bigint, documents bigint")
    totals = parts.groupBy("token").agg(f.sum("count").alias("count"), f.sum("documents").alias("documents"))
    for special in (lookup.mask_token, lookup.oov_token):
        if special is not None:
            literal = f.lit(int(special) if integers else bytearray(_bytes(special)))
            totals = totals.where(f.col("token").isNull() | (f.col("token") != literal))
    if lookup.max_tokens:
        # Keras's order: the most frequent first, of equals that with the greater bytes. Rows are counted as no token.
        order = [f.col("token").isNull().desc(), f.col("count").desc(), f.col("token").desc()]
        totals = totals.orderBy(*order).limit(max(lookup.max_tokens - lookup._token_start_index(), 0) + 1)
    found = totals.collect()
    rows = sum(row["documents"] for row in found if row.token is None)
    found = [row for row in found if row.token is not None]
    if not found:
        raise (
            _no_rows(layer)
            if not rows
            else SpecError(f"the layer {layer.name!r} can't adapt: in its {rows} rows there is no token to learn")
        )
    tokens = np.empty(len(found), np.int64 if integers else object)
    tokens[:] = [row.token if integers else bytes(row.token) for row in found]
    counts, documents = (np.array([row[name] for row in found], np.int64) for name in ("count", "documents"))
    return TokenCounts(tokens, counts, documents, rows)


def _bytes(token: Any) -> bytes:
    return token if isinstance(token, bytes) else str(token).encode()


def _no_rows(layer: Any) -> SpecError:
    return SpecError(f"the layer {layer.name!r} can't adapt: the DataFrame has no rows")


def _set(layer: Any, state: Any) -> None:
    if isinstance(state, Moments):
        set_moments(layer, state)
    elif isinstance(state, TokenCounts):
        set_tokens(layer, state)
    else:
        layer.bin_boundaries = state
    if hasattr(layer, "_is_adapted"):  # tf_keras
        layer._is_adapted = True


@dataclass
class _Undo:
    """Takes a layer's state away again."""

    layer: Any

    def __post_init__(self) -> None:
        self._boundaries = getattr(self.layer, "bin_boundaries", None)
        if family_of(self.layer) in ("IndexLookup", "TextVectorization"):
            lookup = lookup_of(self.layer)
            self._table, self._size = lookup.lookup_table, lookup._frozen_vocab_size
            self._weights = [name for name in ("idf_weights", "idf_weights_const") if not hasattr(lookup, name)]

    def __call__(self) -> None:
        family = family_of(self.layer)
        if family == "Normalization":
            self.layer.adapt_mean.assign(np.zeros(self.layer.adapt_mean.shape, np.float32))
            self.layer.adapt_variance.assign(np.ones(self.layer.adapt_variance.shape, np.float32))
            self.layer.finalize_state()
        elif family == "Discretization":
            self.layer.bin_boundaries = self._boundaries
        else:
            lookup = lookup_of(self.layer)
            lookup.lookup_table, lookup._frozen_vocab_size = self._table, self._size
            for name in self._weights:
                if hasattr(lookup, name):
                    delattr(lookup, name)
