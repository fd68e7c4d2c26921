"""What a supervisor does while the fork server keeps it waiting."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from tensorflowonspark.supervisor.forkserver import forkserver_client
from tensorflowonspark.supervisor.forkserver.forkserver_client import ForkServer
from tensorflowonspark.supervisor.forkserver.server_directory import ServerDirectory
from tests.support.commands import run_python
from tests.support.programs import wait_for


def test_a_busy_server_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(forkserver_client, "_REPLY_SECONDS", 0.2)
    directory = ServerDirectory(ServerDirectory.of(str(tmp_path), os.getpid()), make=True)
    listener = directory.listen()

    def reply_late():
        connection, _ = listener.accept()
        time.sleep(0.5)  # it forks others
        connection.sendall(b'{"refusal": "at last"}\n')
        connection.close()

    Thread(target=reply_late, daemon=True).start()
    reading, writing = os.pipe()
    assert ForkServer(str(tmp_path), os.getpid(), {}).fork(writing, writing) is None
    assert b"at last" in os.read(reading, 1000)
    for descriptor in (reading, writing):
        os.close(descriptor)
    listener.close()
    directory.close()


_SERVER = """
import os, sys
from pathlib import Path
from tensorflowonspark.supervisor.forkserver.compatibility import ImportProperties
from tensorflowonspark.supervisor.forkserver.server_directory import SERVER, ServerDirectory
from tensorflowonspark.supervisor.forkserver import forkserver
directory = ServerDirectory(Path(sys.argv[1]), make=True)
forkserver._REQUEST_SECONDS = 0.2
lock = directory.lock(SERVER)
if forkserver.ForkServerProcess(directory, lock, ImportProperties(dict(os.environ)), sys.path, 600.0).run():
    os.write(1, b"begun")
    os._exit(7)
"""


@pytest.mark.deep
@pytest.mark.parametrize("confirms", [True, False])
def test_a_forked_node_waits_for_its_supervisor_however_long(tmp_path, monkeypatch, confirms):
    """A busy supervisor confirms late, or has started the node with exec by then."""
    path = ServerDirectory.of(str(tmp_path), os.getpid())
    request = ForkServer._request

    def request_and_wait(*arguments):
        reply = request(*arguments)
        time.sleep(0.5)
        assert not select.select([reading], [], [], 0)[0]
        return reply if confirms else {}

    monkeypatch.setattr(ForkServer, "_request", request_and_wait)
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", _SERVER, str(path)], env=os.environ) as server:
        try:
            wait_for(Path(path, "socket").exists, 60)
            node = ForkServer(str(tmp_path), os.getpid(), os.environ).fork(writing, writing)
            os.close(writing)
            assert (node is not None) is confirms
            assert os.read(reading, 100) == (b"begun" if confirms else b"")
            if node is not None:
                assert node.wait(10) == 7
        finally:
            server.kill()
    os.close(reading)


@pytest.mark.parametrize(("backend", "safe"), [("", True), ("tensorflow", True), ("jax", True), ("torch", False)])
def test_nodes_on_another_backend_are_not_forked(backend, safe):
    environment = {"KERAS_BACKEND": backend} if backend else {}
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        assert ForkServer.is_safe(environment) is safe


_PRELOAD = """
from tensorflowonspark.supervisor.forkserver.preload import preload, why_unsafe
import sys
preload()
print([name for name in ("tensorflow", "jax") if name in sys.modules], why_unsafe(own_threads=1) or "safe")
import jax
jax.numpy.zeros(1)
print(why_unsafe(own_threads=1))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "imported", "why"),
    [
        ("tensorflow", ["tensorflow"], "jax is imported"),  # which TensorFlow itself would import
        ("jax", ["jax"], "JAX's runtime has started, or this version of JAX does not say"),
    ],
)
def test_a_fork_server_imports_one_backend_and_starts_no_runtime(monkeypatch, backend, imported, why):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    assert run_python(_PRELOAD).splitlines() == [f"{imported} safe", why]
