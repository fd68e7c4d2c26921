"""Paths, by the rules of TensorFlowOnSpark 2.x."""

import pytest

from tensorflowonspark import storage


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


def test_the_user_is_the_one_who_submitted(monkeypatch):
    monkeypatch.delenv("HADOOP_USER_NAME")
    monkeypatch.setenv("SPARK_USER", "bob")
    assert storage.absolute_path("a", "/work", "hdfs://n") == "hdfs://n/user/bob/a"
