"""The port of TensorBoard, which another process may take before TensorBoard does."""

import socket
import sys
from types import SimpleNamespace

import pytest

from tensorflowonspark.supervisor.tensorboard import _serve
from tests.support.pages import free_port


@pytest.fixture
def taken(monkeypatch):
    """Have each of TensorBoard's ports, but the last of this number, be taken as soon as it was found to be free."""
    found = []

    class TensorBoard:
        def configure(self, argv):
            self.host, self.port = argv[argv.index("--host") + 1], int(argv[-1])

        def launch(self):
            found.append(self.port)
            if len(found) < found_free:
                others.append(socket.create_server((self.host, self.port)))
                sys.exit(1)
            return f"http://{self.host}:{self.port}/"

    others, found_free = [], 2

    def free(number):
        nonlocal found_free
        found_free = number
        return found

    monkeypatch.setitem(sys.modules, "tensorboard", SimpleNamespace(program=SimpleNamespace(TensorBoard=TensorBoard)))
    monkeypatch.delenv("TENSORBOARD_PORT", raising=False)
    yield free
    for each in others:
        each.close()


@pytest.fixture
def ports():
    with socket.create_server(("127.0.0.1", 0)) as first:
        number = first.getsockname()[1]
        yield f"{number}-{number + 20}"


def test_the_next_port_is_tried(taken, ports):
    found = taken(2)
    url = _serve("logs", "127.0.0.1", ports)
    assert url == f"http://127.0.0.1:{found[1]}/"
    assert found[0] < found[1]


def test_an_end_without_a_port_is_named(taken, ports, monkeypatch):
    found = taken(9)
    with pytest.raises(OSError, match=r"it ended with exit code 1 at port \d+ of 127.0.0.1: see the executor's stderr"):
        _serve("logs", "127.0.0.1", ports)
    assert len(found) == 3
    given = free_port()
    monkeypatch.setenv("TENSORBOARD_PORT", str(given))
    with pytest.raises(OSError, match=f"at port {given} of"):
        _serve("logs", "127.0.0.1", ports)
    assert len(found) == 4
