"""TFRecord messages to rows and back, by the names of 2.x."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

import tensorflowonspark as tfos
from tensorflowonspark import dfutil
from tests.support.tfrecord_examples import example, floats, ints, texts


def test_several_bytes_values_stay_several():
    record = example(t=texts(b"one", b"two"), b=texts(b"three", b"four"))
    assert dfutil.fromTFExample([(record.SerializeToString(), None)], ["b"]) == [
        Row(b=[bytearray(b"three"), bytearray(b"four")], t=["one", "two"])
    ]
    assert dfutil.infer_schema(record, ["b"]).simpleString() == "struct<b:array<binary>,t:array<string>>"


def test_the_schema_of_one_record():
    record = example(b=ints(1), a=ints(1, 2), f=floats(1.5), r=texts(b"r"), t=texts(b"t"), e=floats())
    assert dfutil.infer_schema(record, binary_features=["r"]).simpleString() == (
        "struct<a:array<bigint>,b:bigint,e:double,f:double,r:binary,t:string>"
    )


@pytest.mark.parametrize("kind", ["map<int,int>", "struct<x:int>", "array<array<int>>", "interval year", "void"])
def test_a_column_that_no_example_can_have(kind):
    with pytest.raises(tfos.SpecError, match=r"can't have the column 'm' .*: it holds numbers"):
        dfutil.toTFExample([("n", "int"), ("m", kind)])


def test_a_value_of_another_type():
    with pytest.raises(tfos.SpecError, match="column 'n' has a value that is no bigint"):
        dfutil.toTFExample([("n", "bigint")])([("one",)])


def test_rows_know_where_their_columns_are():
    ((message, nothing),) = dfutil.toTFExample([("a", "int"), ("b", "string")])([Row(b="x", a=1)])
    assert type(message) is bytearray
    assert nothing is None
    assert tf.train.Example.FromString(bytes(message)) == example(a=ints(1), b=texts(b"x"))


def test_a_damaged_message_is_named():
    good = example(a=ints(1)).SerializeToString()
    with pytest.raises(tfos.TFRecordError, match="record 2 of a partition, byte 0: no field of a message"):
        dfutil.fromTFExample([(good, None), (good, None), (b"no example", None)])


def test_a_partition_without_rows():
    assert dfutil.fromTFExample(iter([])) == []
    assert dfutil.toTFExample([("a", "int")])(iter([])) == []


def test_many_and_long_records(monkeypatch):
    """Pieces that are encoded and decoded at once end somewhere within them."""
    monkeypatch.setattr(dfutil, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(dfutil, "_TARGET_BYTES", 5000)
    rows = [Row(i=n, b=bytearray(n)) for n in range(200)]
    pairs = dfutil.toTFExample([("i", "bigint"), ("b", "binary")])(iter(rows))
    assert dfutil.fromTFExample(pairs, ["b"]) == [Row(b=row.b, i=row.i) for row in rows]


VALUES = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats(width=32, allow_nan=False),
    "boolean": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "binary": st.binary().map(bytearray),
}
COLUMNS = {
    **{kind.replace("int", "whole"): (kind, st.none() | values) for kind, values in VALUES.items()},
    **{
        f"{kind} array": (f"array<{kind}>", st.none() | st.lists(values, max_size=4)) for kind, values in VALUES.items()
    },
}
BINARY = ["binary", "binary array"]


def feature(kind, value):
    """Return what TensorFlow has for a value."""
    values = value if isinstance(value, list) else [value]
    if "string" in kind or "binary" in kind:
        return texts(*(each.encode() if isinstance(each, str) else bytes(each) for each in values))
    return floats(*values) if "double" in kind else ints(*map(int, values))


def read_back(values):
    """Return what a column's values are when they have been written and read."""
    many = any(isinstance(value, list) and len(value) > 1 for value in values)
    for value in values:
        if many or not isinstance(value, list):
            yield value
        else:
            yield value[0] if value else None


@pytest.mark.deep
@settings(deadline=None)
@given(st.lists(st.tuples(*(values for _, values in COLUMNS.values())), min_size=1, max_size=30))
def test_there_and_back(rows):
    kinds = [kind for kind, _ in COLUMNS.values()]
    pairs = dfutil.toTFExample(list(zip(COLUMNS, kinds, strict=True)))(iter(rows))
    for (message, _), row in zip(pairs, rows, strict=True):
        there = zip(COLUMNS, kinds, row, strict=True)
        expected = example(**{name: feature(kind, value) for name, kind, value in there if value is not None})
        assert tf.train.Example.FromString(bytes(message)) == expected
    found = dfutil.fromTFExample(pairs, BINARY)
    for number, name in enumerate(COLUMNS):
        values = [row[number] for row in rows]
        if all(value is None for value in values):
            assert name not in found[0].__fields__
        else:
            assert [row[name] for row in found] == list(read_back(values)), name


def test_floats_that_are_no_numbers():
    ((message, _),) = dfutil.toTFExample([("x", "array<float>")])([([math.nan, math.inf, np.float32(0.5)],)])
    (row,) = dfutil.fromTFExample([(message, None)])
    assert math.isnan(row.x[0])
    assert row.x[1:] == [math.inf, 0.5]
