"""What nodes find in files, kept for later runs: Parquet footers and the counts of TFRecord files."""

import json
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import FileFeed
from tensorflowonspark.node.feed import footers as module
from tensorflowonspark.node.feed import kept
from tensorflowonspark.node.feed.file_columns import parquet_files
from tensorflowonspark.node.feed.footers import footers, shared_footers
from tensorflowonspark.node.feed.tfrecord_source import tfrecord_splits
from tensorflowonspark.node.feed.uncounted import UncountedRows
from tensorflowonspark.tfrecords.encode import encode
from tensorflowonspark.tfrecords.framing import framed
from tests.unit.node.test_counting import IDS

OLD = time.time() - 3600


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tensorflowonspark" / "files"


@pytest.fixture
def directory(tmp_path):
    """Five Parquet files of 1 to 5 rows."""
    (tmp_path / "data").mkdir()
    for number in range(5):
        write(tmp_path / "data" / f"{number}.parquet", number + 1)
    return tmp_path / "data"


def write(path, rows, modified=OLD):
    pq.write_table(pa.table({"id": list(range(rows))}), path)
    os.utime(path, (modified, modified))


def listed(directory):
    return parquet_files([str(directory)]).files


def rows_of(found):
    return [rows for footer in found for rows, _ in footer.groups]


@pytest.fixture
def read(monkeypatch):
    """The names of the files whose footers were read."""
    names, of = [], module.fragment
    monkeypatch.setattr(module, "fragment", lambda file: names.append(file.path[-9:]) or of(file))
    return names


def test_only_files_that_have_changed_are_read_again(directory, read):
    assert rows_of(footers(listed(directory))) == [1, 2, 3, 4, 5]
    assert len(read) == 5
    write(directory / "2.parquet", 9, OLD + 7)
    write(directory / "5.parquet", 6)
    read.clear()
    assert rows_of(footers(listed(directory))) == [1, 2, 9, 4, 5, 6]
    assert sorted(read) == ["2.parquet", "5.parquet"]


def test_what_is_young_is_not_kept(directory, read):
    write(directory / "2.parquet", 3, time.time())
    footers(listed(directory))
    read.clear()
    footers(listed(directory))
    assert read == ["2.parquet"]


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff\xfe", b'{"a": 1}'])
def test_what_is_damaged_is_ignored(directory, cache, read, text):
    footers(listed(directory))
    (place,) = cache.glob("*.json")
    place.write_bytes(text)
    read.clear()
    assert rows_of(footers(listed(directory))) == [1, 2, 3, 4, 5]
    assert len(read) == 5
    read.clear()
    footers(listed(directory))
    assert not read


@pytest.mark.parametrize("value", [7, [], ["", [[1, 1]]], ["AAAA", [[1, 1]]], [None, None]])
def test_an_entry_of_another_kind_is_ignored(directory, cache, read, value):
    footers(listed(directory))
    (place,) = cache.glob("*.json")
    place.write_text(json.dumps(dict.fromkeys(json.loads(place.read_text()), value)))
    assert rows_of(footers(listed(directory))) == [1, 2, 3, 4, 5]


def test_a_cache_that_can_not_be_written_is_reported_and_no_error(directory, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert rows_of(footers(listed(directory))) == [1, 2, 3, 4, 5]
    assert "what was found in 5 files is not kept for later runs" in caplog.text


def _others_may_write(own):
    own.chmod(0o777)


def _a_link(own):
    own.rename(own.with_name("elsewhere"))
    own.symlink_to(own.with_name("elsewhere"))


def _a_link_to_what_is_kept(own):
    (place,) = own.glob("files/*.json")
    place.rename(own / "planted")
    place.symlink_to(own / "planted")


@pytest.mark.parametrize("planted", [_others_may_write, _a_link, _a_link_to_what_is_kept])
def test_what_others_could_have_kept_is_not_used(directory, cache, read, planted, caplog):
    footers(listed(directory))
    assert cache.stat().st_mode & 0o777 == cache.parent.stat().st_mode & 0o777 == 0o700
    planted(cache.parent)
    read.clear()
    assert rows_of(footers(listed(directory))) == [1, 2, 3, 4, 5]
    assert len(read) == 5
    assert str(cache.parent) in caplog.text


def test_a_cache_that_others_could_only_read_becomes_private(directory, cache, read):
    footers(listed(directory))
    cache.parent.chmod(0o755)
    read.clear()
    footers(listed(directory))
    assert not read
    assert cache.parent.stat().st_mode & 0o777 == 0o700


def test_another_user_s_cache_is_not_used(directory, cache, read, monkeypatch):
    footers(listed(directory))
    read.clear()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert rows_of(footers(listed(directory))) == [1, 2, 3, 4, 5]
    assert len(read) == 5


def test_what_is_kept_is_bounded(directory, cache, monkeypatch):
    monkeypatch.setattr(kept, "_MOST_BYTES", 1)
    footers(listed(directory))
    (directory / "deeper").mkdir()
    write(directory / "deeper" / "6.parquet", 1)
    footers(listed(directory / "deeper"))
    assert len(list(cache.glob("*.json"))) == 1


def test_each_footer_is_read_by_one_worker_and_other_files_by_each(directory):
    files, values = listed(directory), []

    def combine(value, merge):
        values.append(value)
        return merge([value])

    for worker in range(2):
        with pytest.raises(KeyError):  # what the other would give is missing
            shared_footers(files, worker, 2, combine)
    assert sorted([*values[0][1], *values[1][1]]) == [file.path for file in files]
    merged = shared_footers(files, 0, 2, lambda _value, merge: merge(values))
    assert rows_of(merged) == [1, 2, 3, 4, 5]
    others = [(files[:3], {}), values[1]]
    assert rows_of(shared_footers(files, 0, 2, lambda _value, merge: merge(others))) == [1, 2, 3, 4, 5]


def test_a_file_that_vanishes_is_named(directory):
    files = listed(directory)
    (directory / "3.parquet").unlink()
    with pytest.raises(SpecError, match=r"the footer of .*3\.parquet can't be read"):
        footers(files)


def records(directory, counts):
    for number, rows in enumerate(counts):
        path = directory / f"{number}.tfrecord"
        path.write_bytes(framed(encode(pa.record_batch({"id": pa.array(range(rows))}), sequences=False)).tobytes())
        os.utime(path, (OLD + rows, OLD + rows))
    return tfrecord_splits([str(directory)], None, None, {})[0]


def counted(splits):
    return UncountedRows(splits, IDS, 8.0, 1 << 20).alone(FileFeed(0), 0).wait()[1].counts


def test_records_are_counted_once_while_their_files_do_not_change(tmp_path, monkeypatch):
    folder = tmp_path / "records"
    folder.mkdir()
    splits = records(folder, [3, 1, 2])
    assert counted(splits) == [3, 1, 2]
    of, names = type(splits[0]).count, []
    monkeypatch.setattr(type(splits[0]), "count", lambda self: names.append(self.split.file.path[-10:]) or of(self))
    assert counted(splits) == [3, 1, 2]
    assert not names
    assert counted(records(folder, [3, 4, 2])) == [3, 4, 2]
    assert names == ["1.tfrecord"]


def test_counts_of_what_can_be_read_are_not_kept(tmp_path, cache):
    folder = tmp_path / "records"
    folder.mkdir()
    records(folder, [3])
    assert counted(tfrecord_splits([str(folder)], None, None, {"mode": "DROPMALFORMED"})[0]) == [3]
    assert not cache.exists()


def test_a_file_of_records_that_vanishes_or_changes_is_named(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    splits = records(folder, [3, 1])
    records(folder, [3, 2])
    with pytest.raises(FeedError, match=r"1\.tfrecord had \d+ bytes when it was listed"):
        counted(splits)
    (folder / "1.tfrecord").unlink()
    with pytest.raises(FeedError, match=r"1\.tfrecord can't be read any more"):
        counted(splits)
