"""The newest window of each key, as a trained model takes it: a forecast needs no more of a key's rows."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tensorflowonspark.columns import plainly_named, require_frame
from tensorflowonspark.errors import FeedError, SpecError, did_you_mean
from tensorflowonspark.node.feed.row_window import PRESENT, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_ORDERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp")
_MICROSECONDS = 1_000_000


def newest_windows(data: "DataFrame", window: Window, features: str | Sequence[str] | None = None) -> "DataFrame":
    """Return a DataFrame with a row for each key: the newest window of its rows, for ``KerasModel.transform``.

    The window is that with which ``ctx.dataset(window=...)`` ends the rows of a key, without a horizon: the rows to
    come are what the model forecasts.

    Parameters
    ----------
    data : DataFrame
        The rows.
    window : Window
        As in training; its horizon and stride do not matter here.
    features : str or sequence of str, optional
        The columns that become arrays: of numbers, or of arrays of these. By default all but those of the key and of
        the order.

    Returns
    -------
    DataFrame
        The columns of the key, the newest value of the order, and each feature as an array with the rows of the window
        in their order; with ``short="pad"`` also ``present``, an array of booleans. A key with fewer rows after its
        last gap is left out, or padded with zeros in front.

    Raises
    ------
    SpecError
        If an argument can't be right.
    FeedError
        If a column does not exist, or can't be one of a window. When the DataFrame is used, a null in the key or the
        order, and two of a key's newest rows with an equal value of it, are an error of Spark that names the column.

    Examples
    --------
    >>> rows = spark.range(6).selectExpr("id % 2 as store", "id as day", "float(id) as sales")
    >>> newest_windows(rows, Window("store", "day", length=2)).orderBy("store").collect()
    [Row(store=0, day=4, sales=[2.0, 4.0]), Row(store=1, day=5, sales=[3.0, 5.0])]
    """
    from pyspark.sql import Window as Rows
    from pyspark.sql import functions as f

    require_frame(data, "the data")
    if not isinstance(window, Window):
        raise SpecError(f"window={window!r}: expected a Window, as in Window('store', 'day', length=56)")
    if getattr(data, "isStreaming", False):
        raise FeedError("the newest rows of a stream are not known: write them, and read a DataFrame")
    keys, names = list(window.keys), _checked_features(data, window, features)
    plain, _ = plainly_named(data)
    plain_of = dict(zip(data.columns, plain.columns, strict=True))
    types = {name: data.schema[name].dataType for name in (*keys, window.order, *names)}

    *by, order = (_known(plain_of[name], name, types[name].simpleString()) for name in (*keys, window.order))
    values = [f.col(plain_of[name]).alias(f"x_{number}") for number, name in enumerate(names)]
    rows = plain.select(
        *(each.alias(f"key_{number}") for number, each in enumerate(by)),
        order.alias("order"),
        f.struct(order.alias("order"), *values).alias("row"),
    )
    groups = [f.col(f"key_{number}") for number in range(len(keys))]
    newest_first = Rows.partitionBy(*groups).orderBy(f.col("order").desc())
    newer = f.lag("order").over(newest_first)
    equal = f.raise_error(f.lit(f"{window.order!r} has one value in two rows of a key: which comes first is unknown"))
    placed = (
        rows.withColumn("place", f.row_number().over(newest_first))
        .withColumn("is_equal", newer == f.col("order"))
        .withColumn("after_gap", _is_gap(window, types[window.order].simpleString(), newer, f.col("order")))
        .where(f.col("place") <= window.length + 1)  # with the row before the window, which may be as new as its first
        .withColumn("place", f.when(f.col("is_equal"), equal.cast("int")).otherwise(f.col("place")))
    )
    gaps = f.sum(f.col("after_gap").cast("int")).over(newest_first.rowsBetween(Rows.unboundedPreceding, 0))
    kept = placed.withColumn("gaps", gaps).where((f.col("gaps") == 0) & (f.col("place") <= window.length))
    found = kept.groupBy(*groups).agg(f.max("order").alias("order"), f.sort_array(f.collect_list("row")).alias("rows"))
    if window.short == "drop":
        found = found.where(f.size("rows") == window.length)
    missing = f.lit(window.length) - f.size("rows")
    columns = [
        _padded(f.col("rows").getField(f"x_{n}"), types[name], missing, pads=window.short == "pad").alias(name)
        for n, name in enumerate(names)
    ]
    if window.short == "pad":
        flags = f.concat(f.array_repeat(f.lit(False), missing), f.transform("rows", lambda _: f.lit(True)))
        columns.append(flags.alias(PRESENT))
    own = [group.alias(name) for group, name in zip(groups, keys, strict=True)]
    return found.select(*own, f.col("order").alias(window.order), *columns)


def _checked_features(data: "DataFrame", window: Window, features: str | Sequence[str] | None) -> list[str]:
    own = (*window.keys, window.order)
    names = [features] if isinstance(features, str) else list(features or [n for n in data.columns if n not in own])
    for name in (*own, *names):
        if data.columns.count(name) != 1:
            raise FeedError(f"there is no single column {name!r}{did_you_mean(name, data.columns)}: {data.columns}")
    kinds = {name: data.schema[name].dataType.simpleString() for name in (*own, *names)}
    if kinds[window.order] not in _ORDERS:
        raise FeedError(f"the order {window.order!r} has type {kinds[window.order]}: expected {', '.join(_ORDERS)}")
    for name in window.keys:
        if kinds[name] in ("float", "double"):
            raise FeedError(f"the key {name!r} holds fractions, which need not be equal to be alike: round it")
    for name in names:
        if _number_in(data.schema[name].dataType) is None:
            raise FeedError(f"column {name!r} has type {kinds[name]}: windows have numbers, and arrays of numbers")
    if not names:
        raise FeedError(f"no column is left for the features: the rows have {data.columns}")
    if window.short == "pad" and PRESENT in (*own, *names):
        raise FeedError(f"column {PRESENT!r} would take the place of the windows' own: rename it")
    return names


def _number_in(kind: "DataType") -> "DataType | None":
    """Return the type of the numbers of a column; None if it has others."""
    from pyspark.sql.types import ArrayType, BooleanType, FractionalType, IntegralType

    inner = kind.elementType if isinstance(kind, ArrayType) else kind
    return inner if isinstance(inner, (IntegralType, FractionalType, BooleanType)) else None


def _known(column: str, name: str, kind: str) -> "Column":
    """Return a column of the key or the order, which must have a value in each row."""
    from pyspark.sql import functions as f

    missing = f.raise_error(f.lit(f"{name!r} is null or no number in a row: of which window that is is unknown"))
    is_missing = f.col(column).isNull()
    if kind in ("float", "double"):
        is_missing = is_missing | f.isnan(column)
    return f.when(is_missing, missing).otherwise(f.col(column))


def _is_gap(window: Window, kind: str, newer: "Column", older: "Column") -> "Column":
    """Return whether two rows of a key that follow each other are further apart than the rows of a window may be."""
    from pyspark.sql import functions as f

    gap: Any = window.gap
    if gap is None:
        return f.lit(False)
    unit, apart = timedelta(seconds=1), newer - older
    if kind == "date":
        unit, apart = timedelta(days=1), f.datediff(newer, older)
    elif kind == "timestamp":
        apart = (f.unix_micros(newer) - f.unix_micros(older)) / _MICROSECONDS
    elif isinstance(gap, timedelta):
        raise FeedError(f"gap={gap!r}: the order {window.order!r} has type {kind}: give a number")
    limit = gap / unit if isinstance(gap, timedelta) else gap
    return f.coalesce(apart > f.lit(limit), f.lit(False))


def _padded(values: "Column", kind: "DataType", missing: "Column", *, pads: bool) -> "Column":
    """Return the values of a window, with zeros in front for those that are missing."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType

    if not pads:
        return values
    zero = f.lit(0).cast(_number_in(kind))
    row = f.transform(values[0], lambda _: zero) if isinstance(kind, ArrayType) else zero
    return f.concat(f.array_repeat(row, missing), values)
