"""Which files a path stands for, and their partition columns: the rules of Spark's own sources."""

import os

import pytest

from tensorflowonspark.errors import SpecError, StorageError
from tensorflowonspark.tfrecords.files import directory_of, find
from tensorflowonspark.tfrecords.options import Options, RecordType
from tests.support.file_trees import TREES, grow


@pytest.mark.parametrize("name", TREES)
def test_the_files_of_a_directory(tmp_path, name):
    paths, expected = TREES[name]
    grow(tmp_path, paths)
    if isinstance(expected, str):
        with pytest.raises(SpecError, match=expected):
            find([str(tmp_path)])
        return
    found = find([str(tmp_path)])
    assert {os.path.relpath(each.path, tmp_path): dict(each.values) for each in found} == expected


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("day={1,2}", {}, ["day=1/a", "day=2/b", "day=2/c.gz"]),
        ("{day=1/a,day=2,nothing}", {}, ["day=1/a", "day=2/b", "day=2/c.gz"]),
        ("day={1,2/{b,x}}", {}, ["day=1/a", "day=2/b"]),
        ("day=[^1]", {}, ["day=2/b", "day=2/c.gz"]),
        ("*", {}, ["day=1/a", "day=2/b", "day=2/c.gz"]),
        ("day=2", {"pathGlobFilter": "*.{gz,zlib}"}, ["day=2/c.gz"]),
        ("", {"pathGlobFilter": "[ac]*"}, ["day=1/a", "day=2/c.gz"]),
        ("", {"modifiedAfter": "2020-01-01T01:00:00+01:00"}, ["day=2/b", "day=2/c.gz"]),
        ("", {"modifiedBefore": "2020-01-01T00:00:01", "timeZone": "UTC"}, ["day=1/a"]),
        ("", {"modifiedBefore": "2020-01-01T00:00:01", "timeZone": "+01:00"}, []),
        ("", {"modifiedBefore": "2020-01-01T01:00:01", "timeZone": "Europe/Berlin"}, ["day=1/a"]),
    ],
)
def test_wildcards_and_filters(tmp_path, path, options, expected):
    grow(tmp_path, ["day=1/a", "day=2/b", "day=2/c.gz", "_SUCCESS", "b._COPYING_"])
    os.utime(tmp_path / "day=1/a", (1577836800, 1577836800))  # 2020-01-01, 0:00 UTC
    found = find([f"{tmp_path}/{path}"], Options.of(options))
    assert [os.path.relpath(each.path, tmp_path) for each in found] == expected


def test_a_base_path(tmp_path):
    grow(tmp_path, ["day=1/hour=2/a", "day=2/hour=3/b"])
    (found,) = find([f"{tmp_path}/day=1/hour=*"], Options.of({"basePath": str(tmp_path)}))
    assert dict(found.values) == {"day": "1", "hour": "2"}
    with pytest.raises(SpecError, match="basePath='/no/such' is not above"):
        find([str(tmp_path)], Options.of({"basePath": "/no/such"}))


def test_several_paths_without_duplicates(tmp_path):
    grow(tmp_path, ["a/x", "b/y"])
    assert len(find([f"{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/{{a,b}}", f"{tmp_path}/a/x"])) == 2
    with pytest.raises(SpecError, match=r"there is no file or directory .*/\{c,d\}"):
        find([f"{tmp_path}/{{c,d}}"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modifiedAfter": "yesterday"}, "option modifiedAfter='yesterday'.*expected a time such as"),
        (
            {"modifiedBefore": "2026-01-01T00:00:00", "timeZone": "Mars"},
            "timeZone='Mars'.*a zone such as Europe/Berlin",
        ),
        ({"mode": "SLOPPY"}, "option mode='SLOPPY': expected one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
        ({"splitBytes": "many"}, "option splitBytes='many': expected a number of bytes above 0"),
    ],
)
def test_values_that_an_option_can_not_have(options, message):
    with pytest.raises(SpecError, match=message):
        Options.of(options)


def test_names_of_directories_are_sparks():
    text = "a b/ü%c[]{}^~\\'\"#*:=?\x01"
    assert directory_of("h", text) == "h=a b%2Fü%25c%5B%5D%7B}%5E~%5C%27%22%23%2A%3A%3D%3F%01"


@pytest.mark.parametrize("name", ["recordType", "record_type", "recordtype"])
def test_options_have_sparks_names_and_pythons(name):
    assert Options.of({name: "ByteArray"}).record_type is RecordType.BYTE_ARRAY
    with pytest.raises(SpecError, match=f"option {'record_type' if '_' in name else 'recordType'}='Bytes'"):
        Options.of({name: "Bytes"})


@pytest.mark.parametrize(("name", "meant"), [("recrodType", "recordType"), ("recrod_type", "record_type")])
def test_an_unknown_option_is_told_which_was_meant(name, meant):
    with pytest.raises(
        SpecError, match=rf"option {name!r} is unknown \(did you mean {meant!r}\?\); there are .*{meant}"
    ):
        Options.of({name: "ByteArray"})


def test_links_are_followed_as_spark_follows_them(tmp_path):
    grow(tmp_path, ["blobs/a", "blobs/b", "days/day=2/c"])
    (tmp_path / "data").mkdir()
    for name, target in {"one": "../blobs/a", "two": "../blobs/b", ".hidden": "nowhere"}.items():
        (tmp_path / "data" / name).symlink_to(target)
    (tmp_path / "days" / "day=1").symlink_to("../blobs")
    (tmp_path / "all").symlink_to("days")
    assert [os.path.relpath(each.path, tmp_path) for each in find([f"{tmp_path}/data"])] == ["data/one", "data/two"]
    for path in ("days", "all", "a*"):
        found = {each.path.rpartition("/")[2]: dict(each.values) for each in find([f"{tmp_path}/{path}"])}
        assert found == {"a": {"day": "1"}, "b": {"day": "1"}, "c": {"day": "2"}}
    assert len(find([f"{tmp_path}/days/*/[ab]"])) == 2


def test_links_that_lead_nowhere_or_in_a_loop_are_named(tmp_path):
    grow(tmp_path, ["data/a"])
    (tmp_path / "data" / "gone").symlink_to("nowhere")
    with pytest.raises(SpecError, match=r"data/gone is a link to .*/data/nowhere, which does not exist"):
        find([f"{tmp_path}/data"])
    (tmp_path / "data" / "gone").unlink()
    (tmp_path / "data" / "day=1").symlink_to("..")
    with pytest.raises(StorageError, match=r"data is a link that leads back to|day=1 is a link that leads back to"):
        find([f"{tmp_path}/data"])
