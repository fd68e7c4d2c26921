"""What each side of a connection learns of the other before both have proved that they know the secret: nothing."""

import os
import pickle
import socket
import threading
from contextlib import closing, suppress

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from tensorflowonspark.transport import ConnectionLost, Server, connect, new_credentials
from tensorflowonspark.transport.framed_socket import Frame
from tests.support import hostile
from tests.support.fuzz import SECONDS, fuzz

BATCH = pa.record_batch({"x": [1, 2, 3]})


class Relay:
    """Takes a port, passes the bytes of clients on to another one, and keeps those of both directions."""

    def __init__(self, address):
        self._address = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.seen = bytearray()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._address)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._move, args=ends, daemon=True).start()

    def _move(self, source, sink):
        with suppress(OSError):
            while data := source.recv(4096):
                self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        self._listener.close()


def serve(known, identity="", seen=None):
    """Run a server that notes what reaches it."""

    def answer(channel):
        word = channel.receive()
        if seen is not None:
            seen.append(word)
        channel.send(word)

    return Server(("127.0.0.1", 0), known, identity=identity, on_channel=answer)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_token_is_never_sent(tls):
    known = new_credentials(tls=tls)
    with closing(serve(known)) as server, closing(Relay(("127.0.0.1", server.port))) as relay:
        channel = connect(relay.address, known).channel()
        channel.send("a word of ours")
        assert channel.receive() == "a word of ours"
        assert len(relay.seen) > 100
        assert known.token.encode() not in relay.seen
        assert (b"a word of ours" in relay.seen) is not tls


def _bomb(path):
    """Return what creates a file where it is unpickled."""

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(path),)

    return pickle.dumps(Bomb())


@pytest.mark.parametrize("proof", [b"", bytes(32), os.urandom(32)], ids=["none", "zeros", "random"])
def test_who_takes_the_port_of_a_node_gets_nothing_and_runs_nothing(tmp_path, proof):
    """Not the token, not a row, and no message of it is unpickled."""
    known, got = new_credentials(), bytearray()
    listener = socket.create_server(("127.0.0.1", 0))

    def pretend():
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                bomb = _bomb(tmp_path / "broken in")
                client.sendall(hostile.PROTOCOL + bytes(32) + b"\1" + proof + hostile.frame(Frame.MESSAGE, bomb) * 3)
                with suppress(OSError):
                    while data := client.recv(4096):
                        got.extend(data)
                client.close()

    threading.Thread(target=pretend, daemon=True).start()
    for call in (
        lambda peer: peer.channel().receive(),
        lambda peer: peer.put("a header of ours", BATCH.schema).finish(),
        lambda peer: list(peer.exchange("a header of ours", BATCH.schema).request(BATCH)),
    ):
        with (
            closing(connect(listener.getsockname(), known, identity="node")) as peer,
            pytest.raises(ConnectionLost, match="has not proved that it belongs to this cluster"),
        ):
            call(peer)
    listener.close()
    assert not (tmp_path / "broken in").exists()
    assert known.token.encode() not in got
    assert b"header" not in got


def test_a_connection_can_not_be_led_to_another_member(tmp_path):
    """Whoever has the port of a node that ended may pass all bytes on to the driver or to another node."""
    known, seen = new_credentials(), []
    for identity in ("", "worker:1 on b (2)"):
        with closing(serve(known, identity, seen)) as server, closing(Relay(("127.0.0.1", server.port))) as relay:
            peer = connect(relay.address, known, identity="worker:0 on a (1)")
            names = f"{identity or 'the driver'} got a call for worker:0 on a (1)"
            with closing(peer), pytest.raises(ConnectionLost) as caught:
                peer.channel()
            assert str(caught.value) == names
    assert not seen


def test_a_proof_can_not_be_used_again():
    known, seen = new_credentials(), []
    with closing(serve(known, seen=seen)) as server, closing(Relay(("127.0.0.1", server.port))) as relay:
        channel = connect(relay.address, known).channel()
        channel.send("once")
        assert channel.receive() == "once"
        recorded = bytes(relay.seen)
        start = recorded.index(hostile.PROTOCOL)
        with hostile.connected(("127.0.0.1", server.port)) as peer:
            peer.settimeout(5)
            with suppress(ConnectionError):
                peer.sendall(recorded[start:])
                while peer.recv(1 << 16):
                    pass
    assert seen == ["once"]


class Handled:
    """A server whose handlers take whatever comes, with the socket of a member before it."""

    def __init__(self):
        self.known = new_credentials()
        self.server = Server(
            ("127.0.0.1", 0),
            self.known,
            on_channel=lambda channel: channel.send(channel.receive()),
            on_put=lambda header, schema, items: sum(1 for _ in items),
            on_exchange=lambda header, items: items,
        )
        self.address = ("127.0.0.1", self.server.port)

    def answer(self):
        with closing(connect(self.address, self.known)) as peer:
            stream = peer.put("rows", BATCH.schema)
            stream.write(BATCH)
            assert stream.finish() == 1


_SCHEMA = BATCH.schema.serialize().to_pybytes()
_CALLS = [pickle.dumps((kind, "header")) for kind in ("channel", "put", "exchange", "none")]
_BYTES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([_SCHEMA, BATCH.serialize().to_pybytes(), *_CALLS, pickle.dumps(("put",)), pickle.dumps(3)]),
)


@st.composite
def frames(draw):
    """Return the bytes of some frames: most of them well made, some with lengths and bits that are wrong.

    Pickles stay as they are: a member may send any, also one that takes all memory.
    """
    made = [(Frame.CALL, draw(st.sampled_from(_CALLS)), None), (Frame.SCHEMA, _SCHEMA, None)]
    for _ in range(draw(st.integers(0, 4))):
        data = draw(_BYTES)
        length = draw(st.sampled_from([None, None, None, len(data) + 1, 1 << 33, (1 << 64) - 1]))
        made.insert(draw(st.integers(0, len(made))), (draw(st.sampled_from([*Frame, 0, 99])), data, length))
    whole = []
    for kind, data, length in made:
        each = bytearray(hostile.frame(kind, data, length))
        for _ in range(draw(st.sampled_from([0, 0, 1, 3])) if kind in (Frame.SCHEMA, Frame.BATCH) else 0):
            at = draw(st.integers(0, len(each)))
            each[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
        whole.append(bytes(each))
    return b"".join(whole)


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_no_frames_of_a_member_stop_a_server():
    """Each is answered, or is an error to its sender: within moments, and others are served as before."""
    handled = Handled()
    threads = threading.active_count()

    def check(sent):
        with hostile.connected(handled.address) as peer:
            peer.settimeout(10)
            hostile.proved(peer, handled.known.token.encode())
            with suppress(ConnectionError):
                peer.sendall(sent)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    pass

    fuzz(frames(), check)
    handled.answer()
    handled.server.close()
    assert threading.active_count() <= threads + 3


@pytest.mark.deep
@pytest.mark.timeout(120 + 2 * SECONDS)
def test_no_beginning_of_a_stranger_stops_a_server():
    handled = Handled()

    def check(sent):
        with hostile.connected(handled.address) as peer, suppress(ConnectionError):
            peer.settimeout(10)
            peer.sendall(sent)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 16):
                pass

    beginnings = st.one_of(st.binary(max_size=700), st.binary(max_size=700).map(lambda rest: hostile.HELLO + rest))
    fuzz(beginnings, check)
    handled.answer()
    handled.server.close()
