"""What a supervisor does while the fork server keeps it waiting."""

import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from tensorflowonspark.supervisor.forkserver.client import ForkServer
from tensorflowonspark.supervisor.forkserver.rendezvous import Rendezvous


def test_a_busy_server_is_waited_for(tmp_path):
    rendezvous = Rendezvous(Rendezvous.of(str(tmp_path), os.getpid()), make=True)
    listener = rendezvous.listen()

    def reply_late():
        connection, _ = listener.accept()
        time.sleep(1.5)  # it forks others
        connection.sendall(b'{"refusal": "at last"}\n')
        connection.close()

    Thread(target=reply_late, daemon=True).start()
    reading, writing = os.pipe()
    assert ForkServer(str(tmp_path), os.getpid(), {}).fork(writing, writing) is None
    assert b"at last" in os.read(reading, 1000)
    for descriptor in (reading, writing):
        os.close(descriptor)
    listener.close()
    rendezvous.close()


@pytest.mark.parametrize(("environment", "safe"), [({}, True), ({"KERAS_BACKEND": "jax"}, False)])
def test_nodes_on_another_backend_are_not_forked(environment, safe):
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        assert ForkServer.is_safe(environment) is safe


@pytest.mark.slow
def test_a_fork_server_does_not_import_jax_although_it_is_installed():
    program = (
        "from tensorflowonspark.supervisor.forkserver.preload import preload, why_unsafe\n"
        "import sys\n"
        "preload()\n"
        "print('jax' in sys.modules, why_unsafe(own_threads=1) or 'safe')\n"
        "import jax\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False safe"
