import errno
import socket
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from tensorflowonspark.config import ClusterConfig, ClusterSpec, Job, Role
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.supervisor.host import reserve_port
from tensorflowonspark.supervisor.supervisor import Supervisor
from tensorflowonspark.task.launch import LaunchPlan
from tensorflowonspark.transport import Credentials


def test_nobody_else_gets_a_reserved_port():
    with reserve_port() as reservation:
        port = reservation.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
            other.bind(("127.0.0.1", port))
        assert caught.value.errno == errno.EADDRINUSE


def test_searches_for_a_free_port_do_not_find_it():
    with reserve_port() as reservation:
        found = {reserve_port().getsockname()[1] for _ in range(200)}
        assert reservation.getsockname()[1] not in found


def test_a_port_is_reserved_again_for_the_process_that_takes_the_place_of_another():
    with reserve_port() as reservation:
        port = reservation.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            reserve_port(port)
    with reserve_port(port) as again:
        assert again.getsockname()[1] == port


def test_connections_go_to_the_one_that_listens():
    with reserve_port() as reservation, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", reservation.getsockname()[1]))
        server.listen()
        for _ in range(20):
            with socket.create_connection(server.getsockname(), timeout=5):
                server.accept()[0].close()


@pytest.mark.parametrize(("wanted", "why"), [("8471/tcp", "invalid literal"), ("70000", "0-65535"), (None, "in use")])
def test_a_port_that_can_not_be_had_is_reported(monkeypatch, wanted, why):
    with socket.socket() as other:
        other.bind(("", 0))
        port = wanted or str(other.getsockname()[1])
        monkeypatch.setenv("TENSORFLOW_PORT", port)
        task, supervisor = Pipe()
        assignment = SimpleNamespace(role=Role(Job.WORKER, 0), port=0, config=SimpleNamespace(ports=None))
        Supervisor(assignment, supervisor).run()
    word = task.recv()
    assert word.kind is FailureKind.LOST
    assert f"it can't have port {port} (" in word.reason
    assert why in word.reason
    assert word.advice.startswith("unset TENSORFLOW_PORT")


def test_a_port_is_taken_from_a_range(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        first = taken.getsockname()[1]
        ports = f"{first}-{first + 20}"
        with reserve_port(ports=ports) as one:
            monkeypatch.setenv("TFOS_PORTS", ports)
            with reserve_port() as two:  # two nodes of one user do not share one
                found = [each.getsockname()[1] for each in (one, two)]
        assert first < found[0] < found[1] <= first + 20
        with pytest.raises(OSError, match=rf"no port of {first} to {first} is free \(ports\)"):
            reserve_port(ports=str(first))


def test_a_node_that_is_fed_needs_an_address_of_its_host():
    config = ClusterConfig(ClusterSpec(num_workers=1, num_ps=1), b"")
    plan = LaunchPlan(config, "c", Credentials(""), ("driver", 1), {}, True, None, (3, 11))
    served, fed = (config.spec.roles.index(Role(job, 0)) for job in (Job.PS, Job.WORKER))
    with pytest.raises(LookupError) as caught:
        plan.assignment(fed, "192.0.2.7", 1)
    assert str(caught.value).startswith(
        "it can't listen at 192.0.2.7, at which others would look for it (this host does not have that address; it has "
    )
    assert "lo 127.0.0.1" in str(caught.value)
    assert "set SPARK_LOCAL_IP on this host, or network_interface of the cluster" in str(caught.value)
    with pytest.raises(LookupError, match="this host knows no address of that name"):
        plan.assignment(fed, "no.such.host.invalid", 1)
    assert plan.assignment(served, "192.0.2.7", 1).host == "192.0.2.7"  # TensorFlow listens at all addresses
    assert plan.assignment(fed, "127.0.0.1", 1).host == "127.0.0.1"
