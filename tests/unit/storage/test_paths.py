"""Paths, by the rules of TensorFlowOnSpark 2.x."""

from pathlib import Path

import pytest

from tensorflowonspark import storage
from tensorflowonspark.errors import StorageError


@pytest.fixture(autouse=True)
def ann(hadoop_free, monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")


@pytest.mark.parametrize(
    ("default", "path", "absolute"),
    [
        ("hdfs://n:8020", "hdfs://other/a", "hdfs://other/a"),
        ("hdfs://n:8020", "s3a://b/a", "s3a://b/a"),
        ("hdfs://n:8020", "file:///a", "file:///a"),
        ("hdfs://n:8020", "/a/b", "hdfs://n:8020/a/b"),
        ("hdfs://n:8020/", "a/b", "hdfs://n:8020/user/ann/a/b"),
        ("viewfs://v", "a", "viewfs://v/user/ann/a"),
        ("file:///", "a", "file:///work/a"),
        ("file:///", "/a", "file:///a"),
        ("s3a://b", "a", "s3a://b/a"),
        ("", "a", "file:///work/a"),
    ],
)
def test_an_absolute_path(default, path, absolute):
    storage.use({"fs.defaultFS": default} if default else {})
    assert storage.absolute_path(path, "/work") == absolute


def test_a_path_without_a_scheme_is_one_of_this_machine(tmp_path):
    storage.use({"fs.defaultFS": "hdfs://nowhere"})
    storage.publish(f"{tmp_path}/note", lambda local: open(local, "w").close())
    assert (tmp_path / "note").exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_local_path_is_literal(tmp_path, scheme):
    (tmp_path / "run").mkdir()
    storage.publish(f"{scheme}{tmp_path}/run::2", lambda local: Path(local).write_text("second") and None)
    assert (tmp_path / "run::2").read_text() == "second"
    assert not any((tmp_path / "run").iterdir())
    assert storage.fetch(f"{scheme}{tmp_path}/run::2", f"{tmp_path}/copy")
    assert (tmp_path / "copy").read_text() == "second"
    assert not storage.fetch(f"{scheme}{tmp_path}/run::3", f"{tmp_path}/none")


@pytest.mark.parametrize("name", ["hdfs", "s3", "data", "memory"])
def test_a_local_path_may_have_the_name_of_a_scheme(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    files, within = storage.file_system(name)
    assert (storage.is_local(files), within) == (True, f"{tmp_path}/{name}")


def test_a_chain_is_meant_or_refused():
    assert storage.file_system("simplecache::memory://d/f")[1].endswith("/d/f")
    with pytest.raises(StorageError, match=r"memory://d/run::2: '2' is no protocol of fsspec's"):
        storage.file_system("memory://d/run::2")


def test_a_directory_is_fetched_with_what_links_lead_to(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a").write_text("1")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model").symlink_to("../blobs/a")
    (tmp_path / "snapshot" / "assets").symlink_to("../blobs")
    assert storage.fetch(f"{tmp_path}/snapshot", f"{tmp_path}/copy")
    assert (tmp_path / "copy/model").read_text() == (tmp_path / "copy/assets/a").read_text() == "1"


def test_the_user_is_the_one_who_submitted(monkeypatch):
    monkeypatch.delenv("HADOOP_USER_NAME")
    monkeypatch.setenv("SPARK_USER", "bob")
    assert storage.absolute_path("a", "/work", "hdfs://n") == "hdfs://n/user/bob/a"
