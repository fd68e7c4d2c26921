"""Columns of all types and layouts for hypothesis, and what their values are in plain, slow Python."""

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tensorflowonspark.columns import Ragged, kind_of, summarize, to_array

VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
LEAVES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
    pa.large_string(), pa.binary(), pa.large_binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    pa.timestamp("us", "Europe/Berlin"), pa.duration("us"), pa.time64("ns"), pa.decimal128(10, 2),
]  # fmt: skip


def dense(values):
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def sparse(size, entries):
    return {"type": 0, "size": size, "indices": sorted(entries), "values": [entries[i] for i in sorted(entries)]}


@st.composite
def vectors(draw, size):
    if draw(st.booleans()):
        return dense(draw(st.lists(st.floats(-9, 9), min_size=size, max_size=size)))
    entries = draw(st.dictionaries(st.integers(0, size - 1), st.floats(-9, 9), max_size=size)) if size else {}
    return sparse(size, entries)


_VALUES = {
    pa.types.is_boolean: st.booleans(),
    pa.types.is_integer: st.integers(0, 100),
    pa.types.is_floating: st.floats(-100, 100, width=32),
    pa.types.is_decimal: st.integers(-999, 999).map(lambda number: Decimal(number) / 4),  # which floats have too
    pa.types.is_date: st.dates(date(1900, 1, 1), date(2100, 1, 1)),
    pa.types.is_duration: st.timedeltas(timedelta(-1000), timedelta(1000)),
    pa.types.is_time: st.times(),
    pa.types.is_string: st.text(max_size=3),
    pa.types.is_large_string: st.text(max_size=3),
    pa.types.is_binary: st.binary(max_size=3),
    pa.types.is_large_binary: st.binary(max_size=3),
}


def leaf_values(kind):
    """Values of a type, as Arrow takes them."""
    if pa.types.is_timestamp(kind):
        zone = st.none() if kind.tz is None else st.just(timezone.utc)
        return st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=zone)
    return next(values for test, values in _VALUES.items() if test(kind))


@dataclass
class Column:
    """A column, which may be a piece out of the middle of a longer one, and what it was made of."""

    array: pa.Array
    leaf: pa.DataType
    sizes: tuple  # of each level of lists, from the outermost on: a number, or None where they vary
    fill: object


@st.composite
def columns(draw, leaves=LEAVES, sizes=None, nulls=None, max_rows=6):
    """A column of any type, nested as deep as there are sizes."""
    leaf = draw(st.sampled_from(leaves))
    if sizes is None:
        sizes = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    holes = draw(st.booleans()) if nulls is None else nulls
    kind, values = leaf, leaf_values(leaf)
    values = values | st.none() if holes else values
    for size in reversed(sizes):
        kind = draw(list_types(kind, size))
        bounds = {"max_size": 3} if size is None else {"min_size": size, "max_size": size}
        values = st.lists(values, **bounds)
        values = values | st.none() if holes else values
    rows = draw(st.lists(values, max_size=max_rows))
    array = draw(pieces(pa.array(rows, kind)))
    fill = draw(leaf_values(leaf)) if holes else None
    return Column(array, leaf, sizes, None if fill is None else plain(fill))


def list_types(kind, size):
    types = [pa.list_(kind), pa.large_list(kind), pa.list_(pa.field("element", kind))]
    return st.sampled_from(types if size is None else [*types, pa.list_(kind, size)])


@st.composite
def pieces(draw, array):
    """The same array, or a part out of its middle; perhaps with values hidden behind nulls, as filters leave them."""
    rows = array.to_pylist()
    donors = [row for row in rows if row is not None]
    if donors and len(donors) < len(rows) and pa.types.is_list(array.type) and draw(st.booleans()):
        whole = pa.array([donors[-1] if row is None else row for row in rows], array.type)
        array = pa.ListArray.from_arrays(whole.offsets, whole.values, mask=array.is_null())
        assert array.to_pylist() == rows
    start = draw(st.integers(0, len(array)))
    return array.slice(start, draw(st.integers(0, len(array) - start)))


def plain(value):
    """A single value of Arrow's as the number, string or bytes that it is in numpy."""
    if isinstance(value, datetime):
        epoch = datetime(1970, 1, 1, tzinfo=value.tzinfo and timezone.utc)
        return (value - epoch) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**9 + value.microsecond * 1000
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, Decimal):
        return float(value)
    return value


def expand(value):
    """A vector or bytes as a list of numbers; a list of any of them likewise."""
    if isinstance(value, dict):
        if value["type"] == 1:
            return value["values"]
        entries = dict(zip(value["indices"], value["values"], strict=True))
        return [entries.get(index, 0.0) for index in range(value["size"])]
    if isinstance(value, bytes):
        return list(value)
    return [expand(each) for each in value] if isinstance(value, list) else value


def filled(value, sizes, fill):
    """A nested value with the fill for each null; a null that stands for a list of a size becomes as many."""
    if not sizes:
        return fill if value is None else plain(value)
    size, *inner = sizes
    if value is None:
        return [] if size is None else [filled(None, inner, fill) for _ in range(size)]
    return [filled(each, inner, fill) for each in value]


def array_of(column, **options):
    """What a program gets of a column with these options."""
    return to_array(column, own_kind(column, **options))


def own_kind(column, **options):
    return kind_of("x", column.type, summarize(pa.record_batch({"x": column}))["x"], **options)


def as_lists(values):
    """Rows as nested lists, whether they are ragged or not."""
    rows = values.rows() if isinstance(values, Ragged) else values
    return [as_list(row) for row in rows]


def as_list(value):
    if isinstance(value, list):
        return [as_list(each) for each in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
