from pathlib import Path

import fsspec
import pytest

from tensorflowonspark.storage import publish


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
