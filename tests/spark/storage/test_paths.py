"""Paths, by the settings of a session."""

import pytest

from tensorflowonspark import storage

pytestmark = pytest.mark.smoke


@pytest.fixture(autouse=True)
def ann(hadoop_free, monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")


@pytest.mark.masters("local")
def test_what_a_session_says(spark):
    spark.conf.set("fs.s3a.secret.key", "secret")
    try:
        settings = storage.hadoop_settings(spark)
    finally:
        spark.conf.unset("fs.s3a.secret.key")
    assert settings["fs.s3a.secret.key"] == "secret"
    assert settings["fs.defaultFS"] == "file:///"
    assert len(settings) < 20
