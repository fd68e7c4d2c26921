"""Every setting and option of Spark that its own sources of files obey: obeyed here, refused by name, or of no effect.

The tables are those of docs/tfrecord.md. Rows are read as a node reads them; tests/spark/tfrecords has the session.
"""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from tensorflowonspark import storage
from tensorflowonspark.errors import FeedError, SpecError, TFRecordError
from tensorflowonspark.storage.listing import UNSUPPORTED
from tensorflowonspark.tfrecords.options import SETTINGS, Options
from tensorflowonspark.tfrecords.writing import OutputFiles
from tests.support.file_settings import OBEYED_OPTIONS, REFUSED_OPTIONS, WITHOUT_MEANING
from tests.support.tfrecord_files import read_rows, write_rows

PAGE = Path(__file__).parents[3] / "docs" / "tfrecord.md"


@pytest.fixture
def session():
    """Sets what the session would bring."""
    before = storage.settings()
    yield lambda **given: storage.use({**before, **given})
    storage.use(before)


def partitions(path):
    for day in ("7", "08"):
        write_rows(path / f"day={day}/records", id=[int(day)])
    return path


def case(path, **given):
    write_rows(path / "records", UserId=[1])
    return read_rows(path, schema="userid bigint", **given)


def corrupt_column(path, **given):
    file = Path(write_rows(path / "records", id=[1]))
    file.write_bytes(file.read_bytes() + b"damage")
    rows = read_rows(path, schema="id bigint, why string", mode="PERMISSIVE", **given)
    return [row["why"] is not None for row in rows]


def corrupt_files(path, **given):
    """Three records, the second with wrong data, and the header of another."""
    file = Path(write_rows(path / "records", id=[1, 2, 3]))
    data = bytearray(file.read_bytes())
    data[len(data) // 3 + 20] ^= 1
    file.write_bytes(data + b"damage")
    try:
        return read_rows(path, schema="id bigint", **given)
    except TFRecordError:
        return "refused"


def invalid_paths(path, **given):
    write_rows(partitions(path) / "other/records", id=[1])
    try:
        return len(read_rows(path, **given))
    except SpecError:
        return "refused"


def missing_files(path, **given):
    from tensorflowonspark.storage.listing import Listing, find
    from tensorflowonspark.tfrecords.reading import read
    from tensorflowonspark.tfrecords.splits import plan

    write_rows(path / "a", id=[1])
    write_rows(path / "b", id=[2])
    tasks = plan(find([str(path)], Listing()), 1 << 20)
    os.remove(path / "a")
    fields = [pa.field("id", pa.int64())]
    try:
        batches = [batch for task in tasks for batch in read(task, fields, Options.of(given))]
        return [batch.to_pydict() for batch in batches]
    except FileNotFoundError:
        return "refused"


def split_bytes(path, **given):
    from tensorflowonspark.storage.listing import File
    from tensorflowonspark.tfrecords.splits import plan

    return len(plan([File("a", 256 << 20, 0.0)], Options.of(given).split_bytes))


def written(path, rows, **given):
    output = OutputFiles(str(path), Options.of(given), overwrite=True)
    output.begin()
    output.commit(output.write([pa.RecordBatch.from_pydict(rows)], 0))
    return sorted(each for each in os.listdir(path) if each != "_SUCCESS")


def records_per_file(path, **given):
    return len(written(path / "out", {"id": list(range(5))}, **given))


def overwrite_mode(path, **given):
    written(path / "out", {"id": [1, 2], "day": [7, 8]}, partitionBy="day")
    return written(path / "out", {"id": [3], "day": [9]}, partitionBy="day", **given)


def inference(path, **given):
    return [row["day"] for row in read_rows(partitions(path), **given)]


def time_zone(path, **given):
    os.utime(write_rows(path / "records", id=[1]), (1577836800, 1577836800))
    return len(read_rows(path, schema="id bigint", modifiedBefore="2020-01-01T00:30:00", **given))


# By setting: what it does, a value, the result without it, and with it.
OBEYED = {
    "spark.sql.caseSensitive": (case, "true", [{"userid": 1}], [{"userid": None}]),
    "spark.sql.columnNameOfCorruptRecord": (corrupt_column, "why", [False, False], [False, True]),
    "spark.sql.files.ignoreCorruptFiles": (corrupt_files, "true", "refused", [{"id": 1}, {"id": 3}]),
    "spark.sql.files.ignoreInvalidPartitionPaths": (invalid_paths, "true", "refused", 2),
    "spark.sql.files.ignoreMissingFiles": (missing_files, "true", "refused", [{"id": [2]}]),
    "spark.sql.files.maxPartitionBytes": (split_bytes, "16MB", 8, 16),
    "spark.sql.files.maxRecordsPerFile": (records_per_file, "2", 1, 3),
    "spark.sql.session.timeZone": (time_zone, "+01:00", 1, 0),
    "spark.sql.sources.partitionColumnTypeInference.enabled": (inference, "false", [8, 7], ["08", "7"]),
    "spark.sql.sources.partitionOverwriteMode": (overwrite_mode, "DYNAMIC", ["day=9"], ["day=7", "day=8", "day=9"]),
}


@pytest.mark.parametrize("name", OBEYED)
@pytest.mark.parametrize("how", ["setting", "option"])
@pytest.mark.filterwarnings("ignore:column .* is null")
def test_a_setting_is_obeyed_also_as_an_option(tmp_path, session, monkeypatch, name, how):
    monkeypatch.setenv("TZ", "UTC")
    does, value, without, with_it = OBEYED[name]
    first, *others = SETTINGS[name].split("_")
    option = first + "".join(map(str.capitalize, others))
    assert does(tmp_path / "without") == without
    if how == "setting":
        session(**{name: value})
        assert does(tmp_path / "with") == with_it
    else:
        assert does(tmp_path / "with", **{option: value}) == with_it


def test_an_option_goes_before_the_setting(tmp_path, session):
    session(**{"spark.sql.caseSensitive": "true"})
    assert case(tmp_path, caseSensitive=False) == [{"userid": 1}]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_setting_that_is_not_supported_is_refused(tmp_path, session, name):
    session(**{name: "x"})
    with pytest.raises(SpecError, match=f"{name}='x' is not supported for TFRecord files: unset it"):
        read_rows(tmp_path)
    session(**{name: UNSUPPORTED[name]} if UNSUPPORTED[name] else {})
    Options.of({})


@pytest.mark.parametrize("name", REFUSED_OPTIONS)
def test_an_option_that_is_not_supported_is_refused(name):
    with pytest.raises(SpecError, match=f"option '{name}' is unknown.*; there are recordType, mode"):
        Options.of({name: "1"})


def test_the_table_is_complete_and_on_its_page():
    assert OBEYED.keys() == SETTINGS.keys()
    text = PAGE.read_text()
    names = [*SETTINGS, *UNSUPPORTED, *OBEYED_OPTIONS, *REFUSED_OPTIONS, *WITHOUT_MEANING]
    assert [name for name in names if f"`{name}`" not in text] == []
    fields = {name.lower() for name in Options.of({}).__dataclass_fields__}
    assert [name for name in OBEYED_OPTIONS if name.lower() not in {each.replace("_", "") for each in fields}] == []


def test_a_file_that_is_gone_is_named_by_a_node(tmp_path):
    from tensorflowonspark.node.feed.tfrecord_source import tfrecord_splits

    path = write_rows(tmp_path / "a", id=[1])
    splits, _ = tfrecord_splits([path], None, None, {"ignoreMissingFiles": True})
    os.remove(path)
    with pytest.raises(FeedError, match=f"{path} can't be read any more"):
        list(splits[0].batches())
