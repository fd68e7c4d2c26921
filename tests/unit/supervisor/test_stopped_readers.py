"""A supervisor of which the node or the driver reads nothing, as one that holds Python's lock in native code."""

import socket
import subprocess
from collections import Counter
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Event, Thread

import pytest

from tensorflowonspark import processes, transport
from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.feed_messages import RowsConsumed
from tensorflowonspark.messages import (
    Accepted,
    Connected,
    Contribution,
    Detach,
    Heartbeat,
    MemberReplaced,
    NodeUsage,
    NoMoreFeeds,
    Stop,
)
from tensorflowonspark.supervisor.outbox import Outbox
from tensorflowonspark.supervisor.supervisor import Supervisor
from tensorflowonspark.supervisor.supervisor_client import NodeAssignment
from tensorflowonspark.transport import seal
from tests.support.programs import wait_for

_TIMEOUT = 0.6
_PROGRAM = bytes(1 << 20)


class Played:
    """A supervisor of this process, with a node and a driver that are played here."""

    def __init__(self, directory, monkeypatch):
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the smallest
        self.node = Connection(theirs.detach())
        self._processes = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
        started = self._processes[0], Connection(ours.detach())
        monkeypatch.setattr(processes, "start", lambda *_, **__: started)
        self.alive = Counter()  # heartbeats that have arrived at the node and at the driver
        self.received = []
        self.ended = Event()
        self._credentials = transport.new_credentials()
        self._server = transport.Server(("127.0.0.1", 0), self._credentials, on_channel=self._serve)
        place = "127.0.0.1", self._server.port
        config = ClusterConfig(ClusterSpec(num_workers=1), _PROGRAM, heartbeat_timeout=_TIMEOUT, warm_nodes=False)
        executor = self._processes[1].pid
        local = str(directory)
        assignment = NodeAssignment(config, "c", self._credentials, place, 0, "here", executor, local_directory=local)
        self.task, pipe = Pipe()
        self._supervisor = Supervisor(assignment, pipe)
        self._released = Event()
        Thread(target=self._run, daemon=True).start()

    def _run(self):
        self._supervisor.run()
        self.ended.set()

    def _serve(self, channel):
        channel.receive()
        self.channel = channel  # before the supervisor goes on
        channel.send(Accepted())
        self._released.wait()  # reads nothing until then
        self._read("driver", channel.receive)

    def read(self, name):
        if name == "driver":
            self._released.set()
        else:
            Thread(target=self._read, args=(name, self.node.recv), daemon=True).start()

    def _read(self, name, receive):
        try:
            while True:
                message = receive()
                self.received.append(message)
                if isinstance(message, (Heartbeat, NodeUsage)):
                    self.alive[name] += 1
        except (EOFError, OSError):
            pass

    def close(self):
        self._released.set()
        self._server.close()
        for each in self._processes:
            each.kill()
            each.wait()
        assert self.ended.wait(10)
        self.node.close()


@pytest.fixture
def played(tmp_path, monkeypatch):
    made = Played(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.mark.deep
@pytest.mark.parametrize("silent", ["node", "driver"])
def test_a_side_that_reads_nothing_does_not_keep_a_supervisor_from_the_other(played, silent):
    other = "driver" if silent == "node" else "node"
    played.read(other)
    assert played.task.poll(10)  # although the node may not have read its program
    assert isinstance(played.task.recv(), Connected)
    played.task.send(Detach())
    if silent == "node":
        for _ in range(50):
            played.channel.send(MemberReplaced(None))
    else:
        for _ in range(3):
            played.node.send(Contribution(0, "gather", bytes(8 << 20)))
    wait_for(lambda: played.alive[other] > 14, 30)
    if silent == "node":
        played.channel.send(Stop(grace_seconds=0.1))
        assert played.ended.wait(10)


@pytest.mark.deep
def test_what_a_supervisor_does_not_read_it_passes_on_as_it_is(played):
    played.read("driver")
    assert played.task.poll(10)
    sealed = seal(NoMoreFeeds())
    sealed.content.data = b"bytes that nobody can unpickle"
    played.channel.send(sealed)
    received = iter(played.node.recv_bytes, sealed.content.data)
    assert all(received)  # what comes before it
    played.node.send(seal(RowsConsumed(0, 7)))
    wait_for(lambda: RowsConsumed(0, 7) in played.received, 10)


def test_signs_of_life_do_not_wait_beside_other_messages():
    written, go = [], Event()

    def write(message):
        go.wait()
        written.append(message)

    outbox = Outbox(write)
    for number in range(5):
        outbox.send(number)
        outbox.send(Heartbeat())
    assert not outbox.close(0.0)
    go.set()
    assert outbox.close(10)
    assert [each for each in written if each != Heartbeat()] == list(range(5))
    assert len(written) <= 6


def test_an_error_of_a_message_is_raised_where_the_next_is_sent():
    def write(_message):
        raise ValueError("too large")

    outbox = Outbox(write)
    outbox.send("one")
    assert outbox.close(10)
    with pytest.raises(ValueError, match="too large"):
        outbox.send("two")
