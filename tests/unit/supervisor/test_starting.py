"""Supervisors on hosts that do not let them start a node."""

import os
from multiprocessing import Pipe

import pytest

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.messages import Failed
from tensorflowonspark.supervisor.supervisor import Supervisor
from tensorflowonspark.supervisor.supervisor_client import NodeAssignment
from tensorflowonspark.transport import new_credentials


@pytest.mark.parametrize("problem", ["no room", "too many processes", "too many threads", "too many files"])
def test_what_keeps_a_node_from_starting_is_reported(problem, tmp_path, monkeypatch):
    def fail(*_, **__):
        if problem == "too many threads":
            raise RuntimeError("can't start new thread")
        raise OSError(*{"no room": (28, "No space left on device")}.get(problem, (11, problem)))

    where = {"no room": "tempfile.mkdtemp", "too many files": "os.pipe"}.get(problem, "subprocess.Popen")
    monkeypatch.setattr(where, fail)
    ours, theirs = Pipe() if where != "os.pipe" else (None, None)
    if ours is None:
        import socket
        from multiprocessing.connection import Connection

        ours, theirs = (Connection(each.detach()) for each in socket.socketpair())
    assignment = NodeAssignment(
        config=ClusterConfig(ClusterSpec(num_workers=1), b"", warm_nodes=False),
        cluster_id="one",
        credentials=new_credentials(),
        driver=("127.0.0.1", 1),
        number=0,
        host="127.0.0.1",
        jvm_pid=os.getpid(),
        local_directory=str(tmp_path),
        echo=False,
    )
    Supervisor(assignment, theirs).run()
    message = ours.recv()
    assert isinstance(message, Failed)
    assert message.reason.startswith("its process can't be started (")
    assert "ulimit" in message.advice
    assert list(tmp_path.iterdir()) == []
