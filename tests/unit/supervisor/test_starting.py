"""Supervisors on hosts that do not let them start a node."""

import os
from multiprocessing import Pipe

import pytest

from tensorflowonspark.config import ClusterSpec, Job, Role
from tensorflowonspark.messages import Failed
from tensorflowonspark.supervisor.assignment import NodeAssignment
from tensorflowonspark.supervisor.supervisor import Supervisor
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
        cluster="one",
        credentials=new_credentials(),
        driver=("127.0.0.1", 1),
        spec=ClusterSpec(num_workers=1),
        number=0,
        role=Role(Job.WORKER, 0),
        host="127.0.0.1",
        jvm_pid=os.getpid(),
        program=b"",
        gpus=(),
        environment={},
        hadoop={},
        local_directory=str(tmp_path),
        silence=30,
        attempt=0,
        first_feed=0,
        level=20,
        echo=False,
        tensorboard="",
        warm=False,
    )
    Supervisor(assignment, theirs).run()
    message = ours.recv()
    assert isinstance(message, Failed)
    assert message.reason.startswith("its process can't be started (")
    assert "ulimit" in message.advice
    assert list(tmp_path.iterdir()) == []
