"""Delegation tokens, which hdfs-native finds by the host that it is given."""

import pytest

from tensorflowonspark import storage


@pytest.mark.parametrize(
    ("service", "host"),
    [(b"127.0.0.1:8020", "127.0.0.1"), (b"127.0.0.1:9000", "localhost"), (b"localhost:8020", "localhost")],
)
def test_a_name_node_is_reached_by_the_address_that_its_token_names(hadoop_free, tmp_path, monkeypatch, service, host):
    storage.use({"ipc.client.test": str(tmp_path)})  # connections are kept by their settings
    (tmp_path / "token").write_bytes(b"HDTS\0\1" + service + b"\0")
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "token"))
    files, _ = storage.file_system("hdfs://localhost/a")
    assert (files.host, files.port) == (host, 8020)
