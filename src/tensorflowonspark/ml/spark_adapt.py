"""``adapt`` of preprocessing layers over a DataFrame: Spark computes the state, without nodes.

Spark's tasks compute statistics, and the driver merges them: moments for a `Normalization`, counts of tokens for
lookups and a `TextVectorization`, and approximate quantiles for a `Discretization`. Keras computes the state of them
(`keras.preprocessing`).
"""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tensorflowonspark.columns import select
from tensorflowonspark.driver.spark.naming import described
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
from tensorflowonspark.keras.structure import inputs_of
from tensorflowonspark.ml.features import TakenColumns
from tensorflowonspark.ml.inputs import input_of_each
from tensorflowonspark.ml.params import check_columns
from tensorflowonspark.ml.preprocessing_layers import (
    adaptable_layers,
    input_names,
    source_inputs,
    unadapted_layers,
)
from tensorflowonspark.ml.row_statistics import CountTokens, Splitter, all_numbers, find_moments
from tensorflowonspark.ml.serialization import is_model
from tensorflowonspark.renamed import takes_old_keywords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Layer = TypeVar("Layer")

_ADVICE = "for adapt, nulls are declared with fill, shapes with shapes, and other dtypes with dtypes"
# An error of this package in a task, as Spark reports it.
_TASK_ERROR = re.compile(r"tensorflowonspark\.errors\.\w+: (.+)$", re.MULTILINE)
_changing = RLock()  # held while the layers of the user's model have a temporary state


@takes_old_keywords(df="data")
def adapt(
    layer_or_model: Layer,
    data: "DataFrame",
    columns: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    *,
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
) -> Layer:
    """Adapt Keras's preprocessing layers to the rows of a DataFrame.

    The result equals that of the layer's own ``adapt`` in one process over all rows. Spark computes it in one pass for
    each layer, for any number of rows; only the state is sent to the driver. The boundaries of a ``Discretization`` are
    those of ``DataFrame.approxQuantile`` with the layer's ``epsilon`` as relative error: the rank of each differs from
    the exact one by at most ``epsilon`` times the number of values. NaNs are ignored.

    Parameters
    ----------
    layer_or_model : keras.Layer or keras.Model
        A ``Normalization``, ``Discretization``, ``StringLookup``, ``IntegerLookup`` or ``TextVectorization``; or a
        model, whose layers of these kinds without a state are adapted.
    data : DataFrame
        The rows.
    columns : str, sequence of str, or mapping, optional
        For a layer, its column, or several columns of numbers that are concatenated; by default the only column of
        the DataFrame, or the one with the layer's name. For a model, the columns by layer, as in
        ``{"layer_name": "column"}``; by default a layer directly behind an input takes the column with the input's
        name.
    shapes, dtypes, fill : mapping, optional
        The shape of one row's value, the dtype, and the value that replaces a null, by column, as for `Feed.dataset`.

    Returns
    -------
    keras.Layer or keras.Model
        The given layer or model, which is changed in place.

    Raises
    ------
    SpecError
        If a layer can't adapt, or its column is missing or ambiguous.

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
        work = [(layer_or_model, _own_columns(layer_or_model, data, columns))]
    elif is_model(layer_or_model):
        if columns is not None and not isinstance(columns, Mapping):
            raise SpecError(
                f"columns={columns!r}: for a model, give the columns by layer, as in {{'layer_name': 'column'}}"
            )
        work = _of_model(layer_or_model, data, columns or {})
    else:
        raise SpecError(
            f"adapt({layer_or_model!r}): expected a Keras model, or one of Keras's layers Normalization, "
            "Discretization, StringLookup, IntegerLookup and TextVectorization"
        )
    for layer, names in work:
        _check(layer, data, names)
    states = [(layer, _compute(layer, data, names, by_column)) for layer, names in work]
    for layer, state in states:
        _set(layer, state)
    return layer_or_model


@contextmanager
def adapted(
    model: Any, df: "DataFrame", features: Sequence[str], by_column: Mapping[str, Mapping[str, Any]]
) -> Iterator[None]:
    """Adapt a model's layers without a state for the duration of a context.

    The model is restored afterwards, since another fit has other rows. `by_column` has the mappings ``shapes``,
    ``dtypes`` and ``fill``.
    """
    by_input: dict[str, list[str]] = {}
    for column, taken in zip(features, input_of_each(inputs_of(model), features), strict=True):
        if taken is not None:
            by_input.setdefault(taken.name, []).append(column)
    work = []
    for layer in unadapted_layers(model):
        names = _columns_of_sources(source_inputs(model, layer), by_input)
        if names and (family_of(layer) != "Normalization" or layer.built):  # others adapt on the nodes
            _check(layer, df, names)
            work.append((layer, _compute(layer, df, names, by_column)))
    with _changing, ExitStack() as changed:
        for layer, state in work:
            changed.enter_context(_restored(layer))
            _set(layer, state)
        yield


def _own_columns(layer: Any, df: "DataFrame", columns: str | Sequence[str] | None) -> list[str]:
    if columns is not None:
        return [columns] if isinstance(columns, str) else list(columns)
    if len(df.columns) == 1 or layer.name in df.columns:
        return [layer.name if layer.name in df.columns else df.columns[0]]
    raise SpecError(f"adapt: name the column of the layer {layer.name!r}; the DataFrame has {df.columns}")


def _of_model(model: Any, df: "DataFrame", columns: Mapping[str, str | Sequence[str]]) -> list[tuple[Any, list[str]]]:
    work = _of_layer(columns, adaptable_layers(model))
    named = [layer for layer, _ in work]
    inputs = input_names(model)
    by_input = {name: [name] for name in inputs if name in df.columns}
    if len(inputs) == len(df.columns) == 1:
        by_input = {inputs[0]: list(df.columns)}
    for layer in unadapted_layers(model):
        if any(layer is each for each in named):
            continue
        sources = source_inputs(model, layer)
        names = _columns_of_sources(sources, by_input)
        if not names:
            why = (
                "does not take an input of the model unchanged"
                if sources is None
                else f"takes the model's input {', '.join(map(repr, sources))}, and the DataFrame has no such column"
            )
            raise SpecError(
                f"the layer {layer.name!r} {why}: name its column, as in "
                f"columns={{{layer.name!r}: {df.columns[0]!r}}}; the DataFrame has {df.columns}"
            )
        work.append((layer, names))
    return work


def _of_layer(columns: Mapping[str, str | Sequence[str]], layers: Sequence[Any]) -> list[tuple[Any, list[str]]]:
    """Return the layers that `columns` names, with their columns."""
    by_name = {layer.name: layer for layer in layers}
    for name in columns:
        if name not in by_name:
            raise SpecError(f"columns names a layer {name!r}; the layers that can adapt are {sorted(by_name)}")
    return [(by_name[name], [each] if isinstance(each, str) else list(each)) for name, each in columns.items()]


def _columns_of_sources(sources: Sequence[str] | None, by_input: Mapping[str, Sequence[str]]) -> list[str]:
    if not sources or any(name not in by_input for name in sources):
        return []
    return [column for name in sources for column in by_input[name]]


def _check(layer: Any, df: "DataFrame", columns: list[str]) -> None:
    """Refuse a layer that can't adapt to the columns, before Spark starts a job."""
    fixed = fixed_reason(layer)
    if fixed:
        raise SpecError(f"the layer {layer.name!r} can't adapt: {fixed}")
    check_columns(df, columns)
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


_INTEGERS = ("byte", "short", "integer", "long", "boolean", "float", "double", "decimal")  # truncated, as Keras does
_STRINGS = ("string", "char", "varchar", "binary")


def _leaf(kind: Any) -> Any:
    return _leaf(kind.elementType) if kind.typeName() == "array" else kind


def _depth(kind: Any) -> int:
    return 1 + _depth(kind.elementType) if kind.typeName() == "array" else 0


def _compute(layer: Any, df: "DataFrame", columns: list[str], by_column: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a layer's state over all rows; it raises SpecError if the layer can't take a value that a task found."""
    try:
        with described(df.sparkSession, f"adapt the layer {layer.name} to {', '.join(columns)}"):
            return _state(layer, df, columns, by_column)
    except Exception as error:
        reason = _TASK_ERROR.search(str(error))
        if isinstance(error, SpecError) or reason is None:
            raise
        raise SpecError(f"the layer {layer.name!r} can't adapt: {reason[1]}") from error


def _state(layer: Any, df: "DataFrame", columns: list[str], by_column: Mapping[str, Mapping[str, Any]]) -> Any:
    family = family_of(layer)
    options: dict[str, dict[str, Any]] = {
        option: {name: value for name, value in values.items() if name in columns}
        for option, values in by_column.items()
    }
    # Columns are renamed, since Spark reads a name with dots as fields of a struct when it sends them to Python.
    frame = select(df, columns).toDF(*[f"column_{place}" for place in range(len(columns))])
    if family in ("IndexLookup", "TextVectorization"):
        depth = _depth(df.schema[columns[0]].dataType)
        if depth:
            options["shapes"].setdefault(columns[0], (None,) * depth)
        return _token_counts(layer, frame, TakenColumns(tuple(columns), options, advice=_ADVICE))
    if family == "Normalization" and layer.built and len(columns) == 1:
        built = tuple((layer.get_build_config() or {}).get("input_shape") or ())[1:]
        if built and None not in built and df.schema[columns[0]].dataType.typeName() in ("array", "binary", "udt"):
            options["shapes"].setdefault(columns[0], built)
    taken = TakenColumns(tuple(columns), options, advice=_ADVICE)
    return _moments(layer, frame, taken) if family == "Normalization" else _quantiles(layer, frame, taken)


def _moments(layer: Any, frame: "DataFrame", taken: TakenColumns) -> Moments:
    rows = frame.mapInArrow(partial(find_moments, taken, tuple(layer.axis)), "moments binary").collect()
    parts = [pickle.loads(bytes(row.moments)) for row in rows]
    if not parts:
        raise _no_rows(layer)
    return Moments.merged(parts)


def _quantiles(layer: Any, frame: "DataFrame", taken: TakenColumns) -> list[float]:
    """Return the same boundaries as Keras: as many, of the same ranks."""
    step = 1.0 / layer.num_bins
    ranks = np.minimum(step + np.arange(0.0, 1.0, step), 1.0)[:-1].tolist()
    values = frame.mapInArrow(partial(all_numbers, taken), "value double")
    found = values.approxQuantile("value", ranks or [0.5], float(layer.epsilon))
    if not found:
        raise _no_rows(layer)
    return [float(np.float32(each)) for each in found[: len(ranks)]]


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
        # Keras's order: the most frequent first, of equals the one with the greater bytes. Null has the count of rows.
        order = [f.col("token").isNull().desc(), f.col("count").desc(), f.col("token").desc()]
        masked = lookup.mask_token is not None and lookup.output_mode == "int"
        totals = totals.orderBy(*order).limit(max(lookup.max_tokens - masked - lookup.num_oov_indices, 0) + 1)
    found = totals.collect()
    rows = sum(row["documents"] for row in found if row.token is None)
    found = [row for row in found if row.token is not None]
    if not found:
        raise (
            _no_rows(layer)
            if not rows
            else SpecError(f"the layer {layer.name!r} can't adapt: its {rows} rows contain no token")
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


@contextmanager
def _restored(layer: Any) -> Iterator[None]:
    """Give a layer that has no state none again at the end of the block."""
    family, boundaries = family_of(layer), getattr(layer, "bin_boundaries", None)
    lookup: Any = lookup_of(layer) if family in ("IndexLookup", "TextVectorization") else None
    attributes = {} if lookup is None else dict(vars(lookup))
    try:
        yield
    finally:
        if family == "Normalization":
            layer.adapt_mean.assign(np.zeros(layer.adapt_mean.shape, np.float32))
            layer.adapt_variance.assign(np.ones(layer.adapt_variance.shape, np.float32))
            layer.finalize_state()
        elif family == "Discretization":
            layer.bin_boundaries = boundaries
        else:
            for name in vars(lookup).keys() - attributes.keys():
                delattr(lookup, name)
            for name, value in attributes.items():
                if vars(lookup).get(name) is not value:
                    setattr(lookup, name, value)
