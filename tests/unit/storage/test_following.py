from pathlib import Path

import fsspec

from tensorflowonspark import storage


def test_there_and_back(tmp_path):
    here, again = tmp_path / "here" / "run", tmp_path / "again"
    here.mkdir(parents=True)
    up = storage.DirectorySync(str(here.parent), "memory://following")
    down = storage.DirectorySync("memory://following", str(again))
    (here / "events").write_text("one ")
    up.copy()
    down.copy()
    with open(again / "run" / "events") as reader:  # as TensorBoard does, it keeps the file open
        assert reader.read() == "one "
        with open(here / "events", "a") as more:
            more.write("two")
        up.close()
        down.close()
        assert reader.read() == "two"
    assert fsspec.filesystem("memory").cat("/following/run/events") == b"one two"


def test_what_is_not_published_yet_is_not_copied(tmp_path):
    (tmp_path / "here").mkdir()
    for name in (".events.0123456789abcdef0123456789abcdef", ".hidden", "events"):
        (tmp_path / "here" / name).write_text("one")
    storage.DirectorySync(str(tmp_path / "here"), str(tmp_path / "there")).close()
    assert sorted(each.name for each in (tmp_path / "there").iterdir()) == [".hidden", "events"]


def test_a_file_that_is_removed_is_removed_from_the_copy_if_wanted(tmp_path):
    for removes in (False, True):
        sync = storage.DirectorySync(str(tmp_path), "memory://removed", removes=removes)
        (tmp_path / "events").write_text("one")
        sync.copy()
        (tmp_path / "events").unlink()
        sync.close()
        assert fsspec.filesystem("memory").exists("/removed/events") is not removes


def test_what_is_not_there_yet(tmp_path):
    storage.DirectorySync(str(tmp_path / "later"), "memory://nothing").close()
    assert not Path(tmp_path, "later").exists()
