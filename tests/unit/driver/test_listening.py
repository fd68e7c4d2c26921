"""Where the driver listens, by Spark's settings and the environment."""

import socket
from types import SimpleNamespace

import pytest

from tensorflowonspark.driver.spark.resources import driver_host, listen
from tensorflowonspark.errors import SpecError, StartError
from tensorflowonspark.transport import new_credentials


def context(tmp_path, **settings):
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(getConf=lambda: named, _temp_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "environment", "found"),
    [
        ({}, None, ("localhost", "localhost")),
        ({"spark_driver_host": "a"}, None, ("a", "a")),
        ({"spark_driver_host": "[fd77::2]"}, None, ("fd77::2", "fd77::2")),
        ({"spark_driver_host": "a", "spark_driver_bindAddress": "b"}, None, ("a", "b")),
        ({"spark_driver_host": "a", "spark_driver_bindAddress": "b"}, "c", ("c", "c")),
    ],
)
def test_the_drivers_address_is_sparks_or_that_of_the_environment(tmp_path, monkeypatch, settings, environment, found):
    monkeypatch.delenv("TFOS_SERVER_HOST", raising=False)
    if environment:
        monkeypatch.setenv("TFOS_SERVER_HOST", environment)
    assert driver_host(context(tmp_path, **settings)) == found


def test_the_environment_sets_the_port_or_a_range_of_ports(tmp_path, monkeypatch):
    monkeypatch.setenv("TFOS_SERVER_HOST", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("TFOS_SERVER_PORT", f"{port}-{port + 20}")
        server, (host, used) = listen(driver_host(context(tmp_path)), new_credentials(), lambda channel: None)
        server.close()
        assert host == "127.0.0.1"
        assert port < used <= port + 20
        monkeypatch.setenv("TFOS_SERVER_PORT", str(port))
        with pytest.raises(StartError, match=rf"can't listen at 127.0.0.1, port {port} \(.*: set TFOS_SERVER_HOST"):
            listen(driver_host(context(tmp_path)), new_credentials(), lambda channel: None)
    monkeypatch.setenv("TFOS_SERVER_PORT", "http")
    with pytest.raises(SpecError, match="TFOS_SERVER_PORT='http': expected a port, or the first and the last one"):
        listen(driver_host(context(tmp_path)), new_credentials(), lambda channel: None)
