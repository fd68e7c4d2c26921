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


def test_what_is_not_there_yet(tmp_path):
    storage.DirectorySync(str(tmp_path / "later"), "memory://nothing").close()
    assert not Path(tmp_path, "later").exists()
