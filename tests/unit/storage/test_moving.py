from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile

from tensorflowonspark.errors import StorageError
from tensorflowonspark.storage import DirectorySync, fetch, publish


def write_directory(local):
    (Path(local) / "deep").mkdir(parents=True)
    (Path(local) / "deep" / "file").write_text("new")


def write_file(local):
    Path(local).write_text("new")


def test_a_directory_replaces_the_one_before(tmp_path):
    target = tmp_path / "models" / "one"
    target.mkdir(parents=True)
    (target / "old").write_text("old")
    publish(str(target), write_directory)
    assert [path.name for path in target.rglob("*")] == ["deep", "file"]
    assert [path.name for path in target.parent.iterdir()] == ["one"]


def test_a_file_with_a_url(tmp_path):
    publish(f"file://{tmp_path}/model.keras", write_file)
    assert (tmp_path / "model.keras").read_text() == "new"


def test_any_file_system():
    publish("memory://bucket/models/one", write_directory)
    files = fsspec.filesystem("memory")
    assert files.cat("/bucket/models/one/deep/file") == b"new"
    assert [Path(path).name for path in files.ls("/bucket/models", detail=False)] == ["one"]
    publish("memory://bucket/models/one", write_file)
    assert files.cat("/bucket/models/one") == b"new"


def test_what_stood_there_stays_when_writing_fails(tmp_path):
    (tmp_path / "model").write_text("old")
    with pytest.raises(ZeroDivisionError):
        publish(str(tmp_path / "model"), lambda local: 1 / 0)
    assert (tmp_path / "model").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("copy", [fetch, lambda source, target: DirectorySync(source, target).close()])
def test_a_file_whose_name_leads_out_of_its_directory_is_refused(tmp_path, copy):
    files = fsspec.filesystem("memory")
    path = "/bucket/planted/../../evil"
    files.store[path] = MemoryFile(files, path, b"evil")
    files.pipe_file("/bucket/planted/zzz", b"")
    target = tmp_path / "1/2/3"
    with pytest.raises(
        StorageError, match=r"/bucket/planted lists a file named '\.\./\.\./evil', which leads out of it"
    ):
        copy("memory://bucket/planted", str(target))
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]
    files.rm("/bucket", recursive=True)
