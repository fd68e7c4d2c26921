"""Garbage, floods and replays at a server: nothing is unpickled, nothing grows, no client is disturbed."""

import os
import pickle
import socket
import ssl
import threading
import time

import psutil
import pyarrow as pa
import pytest

from tensorflowonspark.transport import ConnectionLost, Server, connect, new_credentials
from tensorflowonspark.transport.framed_socket import Frame
from tests.support import hostile
from tests.support.attack import Sizes, attack
from tests.support.programs import wait_for

_SERVER_MEGABYTES = 64  # that a server may grow by; the messages of one run, taken together, have some hundred


class Guarded:
    """Servers of all three kinds, and what reaches their handlers."""

    def __init__(self, directory):
        self.seen = []
        self.servers = []
        self.known = [new_credentials(), new_credentials(), new_credentials(tls=True)]
        self.addresses = []
        for address, known in zip([f"{directory}/socket", ("127.0.0.1", 0), ("127.0.0.1", 0)], self.known, strict=True):
            server = Server(address, known, on_channel=self.channel, on_put=self.put, on_exchange=self.dialogue)
            self.servers.append(server)
            self.addresses.append(address if isinstance(address, str) else ("127.0.0.1", server.port))

    def channel(self, channel):
        word = channel.receive()
        self.seen.append(word)
        channel.send(word)

    def put(self, header, schema, items):
        self.seen.append(header)
        return sum(batch.num_rows for batch in items)

    def dialogue(self, header, batches):
        self.seen.append(header)
        yield from batches

    def answer(self):
        """Ask each for what it is there for."""
        batch = pa.record_batch({"x": [1, 2, 3]})
        for address, known in zip(self.addresses, self.known, strict=True):
            connection = connect(address, known)
            channel = connection.channel()
            channel.send("hello")
            assert channel.receive() == "hello"
            channel.close()
            stream = connection.put("rows", batch.schema)
            stream.write(batch)
            assert stream.finish() == 3
            connection.close()


@pytest.fixture
def guarded(tmp_path):
    made = Guarded(tmp_path)
    yield made
    for server in made.servers:
        server.close()


@pytest.mark.slow
def test_strangers_reach_no_handler_and_take_no_memory(guarded):
    guarded.answer()
    guarded.seen.clear()
    with Sizes([psutil.Process().pid]) as sizes:
        strangers = attack(guarded.addresses, seed=1, count=1500)
        while strangers.poll() is None:
            guarded.answer()  # while they are at it
            time.sleep(0.1)
    assert strangers.returncode == 0
    assert set(guarded.seen) == {"hello", "rows"}
    assert sizes.grown[0] < _SERVER_MEGABYTES


@pytest.mark.parametrize("beginning", [hostile.HELLO, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], ids=["ours", "another"])
def test_a_stranger_is_cut_off_after_some_kilobytes(guarded, beginning):
    for address in guarded.addresses:
        sent = 0
        with hostile.connected(address) as peer, pytest.raises(ConnectionError):
            peer.settimeout(5)
            peer.sendall(beginning + bytes(32) + hostile.frame(Frame.BATCH, length=1 << 30))
            while sent < 512 << 20:
                peer.sendall(bytes(1 << 20))
                sent += 1 << 20
        assert sent < 16 << 20  # what the kernel's buffers hold


def _hung_up(peer, answers=0):
    """Tell whether a connection is closed, after so many bytes or fewer."""
    try:
        while came := peer.recv(max(1, answers)):
            answers -= len(came)
            if answers < 0:
                return False
        return True
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def _client_hello():
    """Return how a TLS client begins that has no certificate, and reads no answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


@pytest.mark.deep
@pytest.mark.parametrize("said", ["nothing", "a beginning"])
@pytest.mark.parametrize("way", [1, 2], ids=["plain", "tls"])
def test_more_unauthenticated_peers_than_may_wait_keep_no_other_out(guarded, way, said):
    """And they use up none of the files that this process may open."""
    before = len(os.listdir("/proc/self/fd"))
    held = []
    for _ in range(300):
        held.append(socket.create_connection(guarded.addresses[way], timeout=5))
        if said != "nothing":
            held[-1].sendall(_client_hello() if way == 2 else hostile.PROTOCOL)
    guarded.answer()
    assert _hung_up(held[0], 2000)  # the oldest had to go
    wait_for(lambda: len(os.listdir("/proc/self/fd")) - before - len(held) < 64 + 40, 5)
    guarded.answer()
    held[-1].settimeout(0.1)
    assert not _hung_up(held[-1], 2000)
    for peer in held:
        peer.close()


@pytest.mark.deep
@pytest.mark.parametrize("way", [1, 2], ids=["plain", "tls"])
def test_as_many_peers_as_are_expected_may_connect_at_once(guarded, way):
    """The supervisors of a large cluster do; none of them is turned away."""
    guarded.servers[way].expect(300)
    held = [socket.create_connection(guarded.addresses[way], timeout=5) for _ in range(299)]
    for peer in held:
        peer.sendall(_client_hello() if way == 2 else hostile.PROTOCOL)
    guarded.answer()
    for peer in held:
        peer.settimeout(0.001)
        assert not _hung_up(peer, 2000)
        peer.close()


def test_peers_connect_at_once_and_are_told_apart(tmp_path):
    """Channels of members, opened at the same time, beside strangers."""
    server = Server(("127.0.0.1", 0), known := new_credentials(), on_channel=lambda each: each.send(each.receive()))
    server.expect(200)
    replies = {}

    def call(number):
        with hostile.connected(("127.0.0.1", server.port)) as stranger:
            stranger.sendall(hostile.PROTOCOL)
            channel = connect(("127.0.0.1", server.port), known).channel()
            channel.send(bytes([number]) * 200_000)
            replies[number] = channel.receive()
            channel.close()

    callers = [threading.Thread(target=call, args=(number,)) for number in range(60)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    server.close()
    assert replies == {number: bytes([number]) * 200_000 for number in range(60)}


@pytest.mark.parametrize("way", [1, 2], ids=["plain", "tls"])
def test_who_says_nothing_is_not_waited_for(guarded, monkeypatch, way):
    monkeypatch.setattr("tensorflowonspark.transport.handshake._PROOF_SECONDS", 0.3)
    with hostile.connected(guarded.addresses[way]) as silent:
        silent.settimeout(5)
        assert _hung_up(silent)


def test_a_handshake_without_the_certificate_lets_nobody_in(guarded, monkeypatch):
    """However much of its own part of the handshake a stranger has done."""
    monkeypatch.setattr("tensorflowonspark.transport.handshake._PROOF_SECONDS", 1.0)
    server = guarded.servers[2]
    with hostile.connected(guarded.addresses[2]) as peer:
        peer.settimeout(5)
        peer.sendall(_client_hello())
        time.sleep(0.3)  # and the answer to the server's part is not sent
        assert len(peer.recv(10_000)) > 300
        assert len(server._unproved) == 1
        assert not server._members
        assert _hung_up(peer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with hostile.connected(guarded.addresses[2]) as peer:
        peer.settimeout(5)
        with pytest.raises((ssl.SSLError, ConnectionError)), context.wrap_socket(peer) as tls:
            tls.sendall(hostile.HELLO)
            if not tls.recv(100):
                raise ConnectionResetError
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with hostile.connected(guarded.addresses[2]) as peer, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(peer)
    guarded.answer()


@pytest.mark.deep
def test_nonsense_of_one_who_has_the_token_is_an_error_to_that_one_alone(guarded):
    with Sizes([psutil.Process().pid]) as sizes:
        for address, known in zip(guarded.addresses[:2], guarded.known, strict=False):
            attack([address], seed=2, count=300, token=known.token).wait()
    guarded.answer()
    assert sizes.grown[0] < _SERVER_MEGABYTES


def test_what_is_no_message_is_named(guarded):
    channel = connect(guarded.addresses[1], guarded.known[1]).channel()
    channel._socket.send(Frame.MESSAGE, b"no pickle")
    with pytest.raises(ConnectionLost, match="9 bytes that are not a message"):
        channel.receive()


def test_a_message_that_is_too_large_is_refused_by_both_sides(guarded, monkeypatch):
    monkeypatch.setattr("tensorflowonspark.transport.channel.MESSAGE_BYTES", 1000)
    channel = connect(guarded.addresses[1], guarded.known[1]).channel()
    with pytest.raises(ValueError, match="str has 1018 bytes, outside of 1 to 1000"):
        channel.send("x" * 1000)
    channel._socket.send(Frame.MESSAGE, pickle.dumps("x" * 1000))
    with pytest.raises(ConnectionLost, match="a message of the other side has 1018 bytes"):
        channel.receive()
