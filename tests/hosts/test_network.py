"""The hosts themselves: what they share, and what the network between them drops."""

import socket
import sys
import time

import pytest

from tensorflowonspark.transport import ONLY_SMALL
from tests.support.hosts import Network, own_folders

_SERVE = """
import socket
s = socket.create_server(('', 5000))
while True:
    with s.accept()[0] as c:
        c.sendall(bytes(int(c.recv(20) or 0)))
"""
_FETCH = """
import socket, sys, time
begin, total = time.monotonic(), 0
c = socket.create_connection((sys.argv[1], 5000), 0.5)
c.sendall(sys.argv[2].encode())
while total < int(sys.argv[2]):
    total += len(c.recv(1 << 20))
print(time.monotonic() - begin)
"""


@pytest.fixture
def pair():
    with Network() as network:
        yield network, network.host("one"), network.host("two")


def reached(one, two, size=1):
    """Return how many seconds a host needs to fetch bytes from another; None if it does not reach it."""
    with one.popen([sys.executable, "-c", _FETCH, two.address, size], stdout=-1, stderr=-1, text=True) as process:
        shown = process.communicate(timeout=60)[0]
    return float(shown) if shown else None


def serve(host, program=_SERVE):
    host.popen([sys.executable, "-c", program])
    end = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((host.address, 5000)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.05)


_REACH = """
import sys
from tensorflowonspark.transport.reach import is_listening, why_unreached
print(is_listening(sys.argv[1]), why_unreached(sys.argv[1]), sep="|")
"""


@pytest.mark.timeout(60)
def test_of_an_mtu_black_hole_large_packets_alone_are_unanswered(pair):
    network, one, two = pair
    serve(two, "import socket, time; server = socket.create_server(('', 5000)); time.sleep(60)")
    answers = []
    for largest in (None, 1200, None):
        network.drop_large(one, two, largest)
        answers.append(one.run(sys.executable, "-c", _REACH, f"{two.address}:5000").strip())
    assert answers == ["True|", f"True|{ONLY_SMALL}", "True|"]
    network.cut(two)
    silent = one.run(sys.executable, "-c", _REACH, f"{two.address}:5000").strip()
    assert silent == "False|no answer within 2 s"


@pytest.mark.timeout(60)
def test_faults_of_the_network_are_told_to_nobody_and_heal(pair):
    network, one, two = pair
    serve(two)
    assert reached(one, two) < 1
    for cut in ((two,), (one, two), (two, one)):
        network.cut(*cut)
        assert reached(one, two) is None
        network.heal(*cut)
        assert reached(one, two) < 1
    network.filter_ports(two, "22, 4000-4010")
    assert reached(one, two) is None
    network.filter_ports(two, "22, 5000-5010")
    assert reached(one, two) < 1
    network.filter_ports(two, None)
    network.kill(two)
    assert reached(one, two) is None
    two = network.host("two", address=two.address)
    serve(two)
    assert reached(one, two) < 1


@pytest.mark.timeout(60)
def test_a_link_can_be_slow_and_lose_packets(pair):
    network, one, two = pair
    serve(two)
    size, before = 2_500_000, network.received(one)
    quick = reached(one, two, size)
    assert size < network.received(one) - before < 2 * size
    network.shape(two, megabits=20)
    assert reached(one, two, size) > 0.8 > quick
    network.shape(two, loss=1.0)
    assert reached(one, two) is None
    network.shape(two)
    assert reached(one, two, size) < 0.8


@pytest.mark.timeout(60)
def test_a_host_has_folders_names_and_processes_of_its_own(tmp_path):
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir()
    shared.mkdir()
    with Network() as network:
        one, two = (network.host(name, mounts=own_folders(shared)) for name in ("one", "two"))
        one.run("sh", "-c", f"hostname > {shared}/name; touch /tmp/file /dev/shm/file")
        assert two.run("cat", shared / "name") == "one\n"
        assert two.run("ls", "/tmp", "/dev/shm").split() == ["/dev/shm:", "/tmp:", tmp_path.parts[2]]
        assert one.path("/tmp/file").exists()
        assert two.run("getent", "ahostsv4", "two").split()[0] == two.address
        with two.popen(["sleep", "infinity"]) as sleeping:
            assert "sleep" in [each.name() for each in two.processes()]
            assert len(two.run("sh", "-c", "echo /proc/[0-9]*").split()) < 10
            network.kill(two)
            assert sleeping.wait(5)
