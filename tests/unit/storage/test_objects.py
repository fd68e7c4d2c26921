"""Object stores: an S3 server, and the options of other stores' clients."""

from pathlib import Path

import pyarrow.fs
import pytest

from tensorflowonspark import storage
from tensorflowonspark.errors import StorageError
from tensorflowonspark.storage import transfer
from tensorflowonspark.storage.file_systems import s3_options
from tests.support.stored import check_directory, check_file, names_below, write_model


def test_a_directory_and_a_file_go_there_and_come_back(bucket, tmp_path):
    storage.use(bucket)
    check_directory("s3a://bucket/models/one", tmp_path)
    check_file("s3://bucket/files", tmp_path)


def test_a_reader_never_finds_a_mixture(bucket, monkeypatch):
    storage.use(bucket)
    place = "s3a://bucket/mixed/model"
    storage.publish(place, write_model(["saved_model.pb", "assets/words", "variables/old"]))
    seen = []
    upload = transfer._upload
    monkeypatch.setattr(transfer, "_upload", lambda *args: (seen.append(names_below(place)), upload(*args)))
    storage.publish(place, write_model(["saved_model.pb", "variables/new"]))
    assert seen == [["assets/words", "variables/old"], ["assets/words", "variables/new", "variables/old"]]
    assert names_below(place) == ["saved_model.pb", "variables/new"]


def test_a_bucket_with_settings_of_its_own(bucket):
    own = {f"fs.s3a.bucket.bucket.{name.removeprefix('fs.s3a.')}": value for name, value in bucket.items()}
    storage.use({**own, "fs.s3a.endpoint": "http://127.0.0.1:1"})
    storage.publish("s3a://bucket/own/note", lambda local: Path(local).write_text("hello") and None)
    assert names_below("s3a://bucket/own") == ["note"]


def test_what_the_s3_client_is_given(bucket):
    assert s3_options("b", {**bucket, "fs.s3a.endpoint": "h:9", "fs.s3a.connection.ssl.enabled": "false"}) == {
        "access_key": "one",
        "secret_key": "two",
        "endpoint_override": "h:9",
        "scheme": "http",
    }
    provider = {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"}
    assert s3_options("b", {**provider, "fs.s3a.endpoint.region": "r"}) == {"anonymous": True, "region": "r"}


def test_azure(hadoop_free):
    if not hasattr(pyarrow.fs, "AzureFileSystem"):
        with pytest.raises(StorageError, match="pip install -U pyarrow"):
            storage.file_system("abfs://container@account.dfs.core.windows.net/a")
        return
    storage.use({"fs.azure.account.key.account.dfs.core.windows.net": "a2V5"})
    files, within = storage.file_system("abfss://container@account.dfs.core.windows.net/a/b")
    assert (files.protocol, within) == ("abfs", "container/a/b")
    with pytest.raises(StorageError, match="names no account"):
        storage.file_system("abfs://container/a/b")


def test_google(hadoop_free):
    storage.use({"fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.storage.root.url": "http://127.0.0.1:1/"})
    files, within = storage.file_system("gs://bucket/a/b")
    assert (files.protocol, within) == ("gcs", "bucket/a/b")


def test_a_scheme_that_nobody_knows():
    with pytest.raises(StorageError, match="^nosuch://place/file: .*nosuch"):
        storage.file_system("nosuch://place/file")
