"""Columns of a given schema and the features of the records: letter case, absent features, and feature lists."""

import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from tensorflowonspark.errors import SpecError, TFRecordError
from tensorflowonspark.tfrecords.encode import encode
from tensorflowonspark.tfrecords.framing import framed
from tests.support.tfrecord_examples import example, floats, ints, texts, write
from tests.support.tfrecord_files import read_rows, write_rows


@pytest.mark.parametrize("rows", [3, 40], ids=["few", "many"])  # two ways to read them
@pytest.mark.parametrize("sequences", [False, True])
def test_letter_case_does_not_matter(tmp_path, rows, sequences):
    options = {"recordType": "SequenceExample" if sequences else "Example"}
    write_rows(tmp_path / "Day=7/a", sequences, UserId=list(range(rows)), Ärger=[1.0] * rows)
    write_rows(tmp_path / "day=8/b", sequences, USERID=[-1], ärger=[2.0])
    found = read_rows(tmp_path, schema="userid bigint not null, äRGER float, DAY int", **options)
    assert found == [
        *({"userid": row, "äRGER": 1.0, "DAY": 7} for row in range(rows)),
        {"userid": -1, "äRGER": 2.0, "DAY": 8},
    ]


@pytest.mark.parametrize("rows", [1, 40])
def test_names_that_differ_only_in_case(tmp_path, rows):
    path = write_rows(tmp_path / "records", id=[1] * rows, ID=[2] * rows, x=[3] * rows)
    assert read_rows(path, columns=["ID", "x"]) == [{"ID": 2, "x": 3}] * rows  # a schema that was inferred is exact
    assert read_rows(path, schema="id bigint, ID bigint") == [{"id": 1, "ID": 2}] * rows
    with pytest.raises(TFRecordError, match="features 'id' and 'ID' differ only in case: rename one, or set caseSens"):
        read_rows(path, schema="id bigint, x bigint")
    assert read_rows(path, schema="id bigint, X bigint", mode="DROPMALFORMED") == []
    with pytest.warns(UserWarning, match="'X' is null: none of the first .* records has it"):
        assert read_rows(path, schema="id bigint, X bigint", caseSensitive=True) == [{"id": 1, "X": None}] * rows


def test_a_column_that_no_record_has_is_said_once_with_the_nearest_name(tmp_path):
    for name in "abc":
        write_rows(tmp_path / name, user_id=[1, 2], late=[None, 7] if name == "c" else pa.nulls(2, pa.int64()))
    schema = "userid bigint, user_id bigint, late bigint"
    with pytest.warns(UserWarning, match="userid") as caught:
        assert len(read_rows(tmp_path, schema=schema)) == 6
    (told,) = caught
    expected = "column 'userid' is null: none of the first 6 records has it; the nearest name is 'user_id'"
    assert str(told.message) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_rows(tmp_path, schema="user_id bigint, late bigint, _corrupt_record string", mode="PERMISSIVE")
        read_rows(tmp_path, schema="bytes binary", recordType="ByteArray")


@pytest.mark.parametrize("rows", [3, 40], ids=["few", "many"])
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("x string", "feature 'x' holds int64 values, and not bytes"),
        ("x byte", "a value of feature 'x' is no int8"),
        ("xs bigint", "feature 'xs' has 2 values"),
        ("y bigint not null", "no feature 'y', which may not be null"),
    ],
)
def test_a_schema_that_does_not_fit_is_to_be_corrected_and_records_are_not_to_be_left_out(
    tmp_path, rows, schema, reason
):
    path = write_rows(tmp_path / "records", x=[300] * rows, xs=[[1, 2]] * rows)
    with pytest.raises(TFRecordError, match=reason) as caught:
        read_rows(path, schema=schema)
    assert caught.value.advice.startswith("give a schema with the type that the values have")
    Path(path).write_bytes(Path(path).read_bytes()[:-5])
    with pytest.raises(TFRecordError) as caught:
        read_rows(path, schema="x int")
    assert caught.value.advice.startswith('mode="DROPMALFORMED"')


def sequence(path, rows=1, context=(1,), steps=((2,), (3,))):
    """Write records with the feature x in the context, in the feature lists, or in both."""
    columns = {
        "context": pa.array([list(context)] * rows if context else pa.nulls(rows, pa.list_(pa.int64()))),
        "lists": pa.array(
            [[list(step) for step in steps]] * rows if steps else pa.nulls(rows, pa.list_(pa.list_(pa.int64())))
        ),
    }
    batch = pa.RecordBatch.from_arrays([*columns.values()], ["x", "x"])
    path.write_bytes(framed(encode(batch, sequences=True)))
    return str(path)


@pytest.mark.parametrize("rows", [1, 40])
def test_one_name_in_the_context_and_in_the_feature_lists(tmp_path, rows):
    both = sequence(tmp_path / "both", rows)
    refused = (
        "feature 'x' is in the context and in the feature lists: in a schema, a single value is the context's, and"
    )

    def read(path, kind, **options):
        return [row["x"] for row in read_rows(path, schema=f"x {kind}", recordType="SequenceExample", **options)]

    with pytest.raises(SpecError, match=refused):
        read_rows(both, recordType="SequenceExample")
    assert read(both, "bigint") == [1] * rows
    assert read(both, "array<array<bigint>>") == [[[2], [3]]] * rows
    with pytest.raises(TFRecordError, match=refused):
        read(both, "array<bigint>")
    assert read(both, "array<bigint>", mode="DROPMALFORMED") == []
    # In one file some records have it here, others there.
    context, lists = sequence(tmp_path / "context", rows, steps=()), sequence(tmp_path / "lists", rows, context=())
    mixed = tmp_path / "mixed"
    mixed.write_bytes(b"".join(Path(each).read_bytes() for each in (context, lists)))
    with pytest.raises(SpecError, match=refused):
        read_rows(mixed, recordType="SequenceExample")
    assert read(mixed, "array<bigint>") == [[1]] * rows + [[2, 3]] * rows
    with pytest.raises(TFRecordError, match="feature 'x' is a feature list, which has a value for each step"):
        read(mixed, "bigint")
    with pytest.raises(TFRecordError, match="feature 'x' is in the context, and its column has those of feature lists"):
        read(mixed, "array<array<bigint>>")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("a string", "feature 'a' holds int64 values, and not bytes"),
        ("b bigint", "feature 'b' holds float values, and not int64"),
        ("many bigint", "feature 'many' has 2 values, and its column is no array of them"),
        ("big int", "a value of feature 'big' is no int32"),
        ("a boolean", "a value of feature 'a' is no bool"),
        ("raw string", "a value of feature 'raw' is no string"),
        ("a int, absent int not null", "no feature 'absent', which may not be null"),
    ],
)
def test_a_feature_of_the_wrong_kind(tmp_path, schema, message):
    path = tmp_path / "records"
    good = example(a=ints(1), b=ints(1), many=ints(1), big=ints(1), raw=texts(b"x"), absent=ints(1))
    bad = example(a=ints(7), b=floats(1.5), many=ints(1, 2), big=ints(2**31), raw=texts(b"\xff"))
    write(path, good, bad, good)
    with pytest.raises(TFRecordError, match=rf"records, byte \d+: {message}"):
        read_rows(path, schema=schema)


@pytest.mark.parametrize(
    ("name", "head", "what"),
    [
        ("a.tfrecord", b"BZh91AY&SY", "bzip2"),
        ("a.tfrecord", b"\xfd7zXZ\x00", "xz"),
        ("a.tfrecord", b"\x28\xb5\x2f\xfd", "zstd"),
        ("a.tfrecord", b"\xff\x06\x00\x00sNaPpY", "snappy"),
        ("a.tfrecord", b"\x04\x22\x4d\x18", "lz4"),
        ("a.tfrecord.snappy", b"\x00\x00\x01\x00", "snappy"),
    ],
)
@pytest.mark.parametrize(
    "options", [{}, {"mode": "DROPMALFORMED"}, {"mode": "PERMISSIVE"}, {"ignoreCorruptFiles": True}]
)
def test_a_file_of_another_compression_is_refused(tmp_path, name, head, what, options):
    (tmp_path / name).write_bytes(head + bytes(100))
    for schema in (None, "id bigint"):
        with pytest.raises(TFRecordError, match=f"{name}, byte 0: it is compressed by {what}.*\n.*decompress it"):
            read_rows(tmp_path, schema=schema, **options)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id bignum", "'id bignum' can't be a column here: a column as text is a name and one of tinyint"),
        ("id", "'id' can't be a column here"),
        ("m map<string,int>", "'m map<string,int>' can't be"),
        (7, "schema=7: expected text such as 'id bigint', a StructType or a pyarrow.Schema"),
    ],
)
def test_a_schema_that_is_none(tmp_path, schema, message):
    with pytest.raises(SpecError, match=message):
        read_rows(tmp_path, schema=schema)


def test_schemas_of_every_kind(tmp_path):
    from pyspark.sql.types import LongType, StructType

    path = write_rows(tmp_path / "records", id=[1], **{"a b": [["1.5"]]})
    for schema in ("id bigint", "ID: LONG", pa.schema({"id": pa.int64()}), StructType().add("id", LongType())):
        assert [list(row.values()) for row in read_rows(path, schema=schema)] == [[1]]
    (row,) = read_rows(path, schema="id INT NOT NULL, `a b` array<decimal(5, 2)>")
    assert str(row["a b"][0]) == "1.50"
