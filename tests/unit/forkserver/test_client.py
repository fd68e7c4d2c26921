"""What a supervisor does while the fork server keeps it waiting."""

import os
import time
from threading import Thread

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
