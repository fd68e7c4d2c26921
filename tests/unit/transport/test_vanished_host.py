"""The other side's host vanishes, or is cut off for a while: it is a network namespace whose interface goes down.

It closes no connection.
"""

import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event

import pytest

from tensorflowonspark import transport
from tensorflowonspark.transport import silence

_OWN, _OTHER = "10.213.7.1", "10.213.7.2"
_CLIENT = """
import pickle, sys
from tensorflowonspark import transport
channel = transport.connect((sys.argv[1], int(sys.argv[2])), pickle.loads(bytes.fromhex(sys.argv[3]))).channel()
channel.send("hello")
channel.receive()
"""
_SERVER = """
import pickle, sys, time
from tensorflowonspark import transport
known = pickle.loads(bytes.fromhex(sys.argv[2]))
server = transport.Server((sys.argv[1], 0), known, on_channel=lambda each: each.send("hello") or print(each.receive()))
print(server.port, flush=True)
time.sleep(60)
"""
_ECHO = """
import pickle, sys, time
from tensorflowonspark import transport
def echo(channel):
    while True:
        channel.send(channel.receive())
server = transport.Server((sys.argv[1], 0), pickle.loads(bytes.fromhex(sys.argv[2])), on_channel=echo)
print(server.port, flush=True)
time.sleep(60)
"""


def ip(command, check=True):
    return subprocess.run(["ip", *command.split()], check=check).returncode


@pytest.fixture
def host():
    """Another host, by the name of its network namespace."""
    if os.getuid() or shutil.which("ip") is None or ip("netns add tfos-gone", check=False):
        pytest.skip("network namespaces need root and iproute2")
    try:
        ip("link add tfos-gone0 type veth peer name tfos-gone1 netns tfos-gone")
        for command in (f"addr add {_OWN}/30 dev tfos-gone0", "link set tfos-gone0 up"):
            ip(command)
        for command in (f"addr add {_OTHER}/30 dev tfos-gone1", "link set tfos-gone1 up"):
            ip(f"-n tfos-gone {command}")
        yield "tfos-gone"
    finally:
        for command in ("link del tfos-gone0", "netns del tfos-gone"):
            ip(command, check=False)


@contextmanager
def far_server(host, program, credentials):
    """Run a server on the other host; yield its address."""
    command = [sys.executable, "-c", program, _OTHER, pickle.dumps(credentials).hex()]
    server = subprocess.Popen(["ip", "netns", "exec", host, *command], stdout=subprocess.PIPE, text=True)
    try:
        yield _OTHER, int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_a_host_that_vanishes_does_not_hold_up_who_sends_to_it(host):
    credentials, channels, ready = transport.new_credentials(patience=5), [], Event()

    def serve(channel):
        channel.receive()
        channels.append(channel)
        ready.set()
        with suppress(transport.ConnectionLost):
            channel.receive()

    server = transport.Server((_OWN, 0), credentials, on_channel=serve)
    arguments = [_OWN, str(server.port), pickle.dumps(credentials).hex()]
    client = subprocess.Popen(["ip", "netns", "exec", host, sys.executable, "-c", _CLIENT, *arguments])
    try:
        assert ready.wait(60)
        ip(f"-n {host} link set tfos-gone1 down")
        began = time.monotonic()
        with pytest.raises(transport.ConnectionLost, match="its host has not answered for 5 s"):
            while True:
                channels[0].send(bytes(4 << 20))
        assert time.monotonic() - began < 15
    finally:
        client.kill()
        client.wait()
        server.close()


@pytest.mark.slow
def test_who_waits_for_a_host_that_vanishes_notices(host, monkeypatch):
    """As a supervisor, which waits for messages of the driver: the kernel asks the silent host."""
    monkeypatch.setattr(silence, "_SILENT_SECONDS", 2)
    credentials = transport.new_credentials(patience=5)
    with far_server(host, _SERVER, credentials) as address:
        channel = transport.connect(address, credentials).channel()
        assert channel.receive() == "hello"
        ip(f"-n {host} link set tfos-gone1 down")
        began = time.monotonic()
        with pytest.raises(transport.ConnectionLost, match="its host has not answered for 5 s"):
            channel.receive()
        assert time.monotonic() - began < 15


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("seconds", "limited", "most"), [(8, True, 4), (8, False, 9)])
def test_a_connection_goes_on_after_a_cut(host, monkeypatch, seconds, limited, most):
    """Both sides send meanwhile, and both have more than the kernel keeps; it limits the time between tries, or not."""
    if not limited:
        monkeypatch.setattr(silence, "_TCP_RTO_MAX_MS", 999)
    credentials = transport.new_credentials(patience=20)
    with far_server(host, _ECHO, credentials) as address:
        channel = transport.connect(address, credentials).channel()
        channel.send(0)
        assert channel.receive() == 0
        ip(f"-n {host} link set tfos-gone1 down")
        messages = [bytes([number]) * (1 << 20) for number in range(1, 17)]
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(lambda: [channel.send(each) for each in messages])
            time.sleep(seconds)
            ip(f"-n {host} link set tfos-gone1 up")
            healed = time.monotonic()
            assert [channel.receive() for _ in messages] == messages
            sent.result()
        assert time.monotonic() - healed < most


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_who_connects_during_a_cut_waits_for_its_end(host):
    credentials = transport.new_credentials(patience=20)
    with far_server(host, _SERVER, credentials) as address:
        ip(f"-n {host} link set tfos-gone1 down")
        with ThreadPoolExecutor(1) as pool:
            channel = pool.submit(lambda: transport.connect(address, credentials).channel())
            time.sleep(8)
            ip(f"-n {host} link set tfos-gone1 up")
            assert channel.result().receive() == "hello"
