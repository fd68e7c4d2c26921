"""Which files a path stands for, and their partition columns: the rules of Spark's own sources."""

import os

import pytest

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError, StorageError
from tensorflowonspark.storage.listing import SETTINGS, UNSUPPORTED, Listing, find
from tensorflowonspark.storage.partition_columns import directory_of
from tests.support.file_trees import TREES, grow


@pytest.mark.parametrize("name", TREES)
def test_the_files_of_a_directory(tmp_path, name):
    paths, expected = TREES[name]
    grow(tmp_path, paths)
    if isinstance(expected, str):
        with pytest.raises(SpecError, match=expected):
            find([str(tmp_path)], Listing())
        return
    found = find([str(tmp_path)], Listing())
    assert {os.path.relpath(each.path, tmp_path): dict(each.values) for each in found} == expected


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("day={1,2}", {}, ["day=1/a", "day=2/b", "day=2/c.gz"]),
        ("{day=1/a,day=2,nothing}", {}, ["day=1/a", "day=2/b", "day=2/c.gz"]),
        ("day={1,2/{b,x}}", {}, ["day=1/a", "day=2/b"]),
        ("day=[^1]", {}, ["day=2/b", "day=2/c.gz"]),
        ("*", {}, ["day=1/a", "day=2/b", "day=2/c.gz"]),
        ("day=2", {"path_glob_filter": "*.{gz,zlib}"}, ["day=2/c.gz"]),
        ("", {"path_glob_filter": "[ac]*"}, ["day=1/a", "day=2/c.gz"]),
        ("", {"modified_after": "2020-01-01T01:00:00+01:00"}, ["day=2/b", "day=2/c.gz"]),
        ("", {"modified_before": "2020-01-01T00:00:01", "time_zone": "UTC"}, ["day=1/a"]),
        ("", {"modified_before": "2020-01-01T00:00:01", "time_zone": "+01:00"}, []),
        ("", {"modified_before": "2020-01-01T01:00:01", "time_zone": "Europe/Berlin"}, ["day=1/a"]),
    ],
)
def test_wildcards_and_filters(tmp_path, path, options, expected):
    grow(tmp_path, ["day=1/a", "day=2/b", "day=2/c.gz", "_SUCCESS", "b._COPYING_"])
    os.utime(tmp_path / "day=1/a", (1577836800, 1577836800))  # 2020-01-01, 0:00 UTC
    found = find([f"{tmp_path}/{path}"], Listing(**options))
    assert [os.path.relpath(each.path, tmp_path) for each in found] == expected


def test_a_base_path(tmp_path):
    grow(tmp_path, ["day=1/hour=2/a", "day=2/hour=3/b"])
    (found,) = find([f"{tmp_path}/day=1/hour=*"], Listing(base_path=str(tmp_path)))
    assert dict(found.values) == {"day": "1", "hour": "2"}
    with pytest.raises(SpecError, match="basePath='/no/such' is not above"):
        find([str(tmp_path)], Listing(base_path="/no/such"))


def test_several_paths_without_duplicates(tmp_path):
    grow(tmp_path, ["a/x", "b/y"])
    assert len(find([f"{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/{{a,b}}", f"{tmp_path}/a/x"], Listing())) == 2
    with pytest.raises(SpecError, match=r"there is no file or directory .*/\{c,d\}"):
        find([f"{tmp_path}/{{c,d}}"], Listing())


def test_names_of_directories_are_sparks():
    text = "a b/ü%c[]{}^~\\'\"#*:=?\x01"
    assert directory_of("h", text) == "h=a b%2Fü%25c%5B%5D%7B}%5E~%5C%27%22%23%2A%3A%3D%3F%01"


def test_links_are_followed_as_spark_follows_them(tmp_path):
    grow(tmp_path, ["blobs/a", "blobs/b", "days/day=2/c"])
    (tmp_path / "data").mkdir()
    for name, target in {"one": "../blobs/a", "two": "../blobs/b", ".hidden": "nowhere"}.items():
        (tmp_path / "data" / name).symlink_to(target)
    (tmp_path / "days" / "day=1").symlink_to("../blobs")
    (tmp_path / "all").symlink_to("days")
    assert [os.path.relpath(each.path, tmp_path) for each in find([f"{tmp_path}/data"], Listing())] == [
        "data/one",
        "data/two",
    ]
    for path in ("days", "all", "a*"):
        found = {each.path.rpartition("/")[2]: dict(each.values) for each in find([f"{tmp_path}/{path}"], Listing())}
        assert found == {"a": {"day": "1"}, "b": {"day": "1"}, "c": {"day": "2"}}
    assert len(find([f"{tmp_path}/days/*/[ab]"], Listing())) == 2


def test_links_that_lead_nowhere_or_in_a_loop_are_named(tmp_path):
    grow(tmp_path, ["data/a"])
    (tmp_path / "data" / "gone").symlink_to("nowhere")
    with pytest.raises(SpecError, match=r"data/gone is a link to .*/data/nowhere, which does not exist"):
        find([f"{tmp_path}/data"], Listing())
    (tmp_path / "data" / "gone").unlink()
    (tmp_path / "data" / "day=1").symlink_to("..")
    with pytest.raises(StorageError, match=r"data is a link that leads back to|day=1 is a link that leads back to"):
        find([f"{tmp_path}/data"], Listing())


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_setting_that_would_leave_out_files_is_refused_for_every_format(name):
    before = storage.settings()
    storage.use({**before, name: "x"})
    try:
        with pytest.raises(SpecError, match=f"{name}='x' is not supported for Parquet files: unset it"):
            Listing.of_session("Parquet")
    finally:
        storage.use(before)


def test_settings_of_the_session_are_obeyed_for_every_format():
    before = storage.settings()
    storage.use({**before, **dict.fromkeys(SETTINGS, "true")})
    try:
        found = Listing.of_session("Parquet")
        assert all(getattr(found, field) is True for field in SETTINGS.values())
        storage.use({**before, **dict.fromkeys(SETTINGS, "false")})
        found = Listing.of_session("Parquet")
        assert not any(getattr(found, field) for field in SETTINGS.values())
    finally:
        storage.use(before)
