import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pyarrow as pa
import pytest

from tensorflowonspark.errors import FeedError
from tensorflowonspark.transport import ConnectionLost, Credentials, Server, connect, new_credentials
from tensorflowonspark.transport.shared_file import SharedFileWriter
from tests.support.programs import wait_for


@pytest.fixture(params=["unix", "tcp", "tls"])
def way(request):
    return request.param


@pytest.fixture
def credentials(way):
    return new_credentials(tls=way == "tls")


@pytest.fixture
def address(way, tmp_path):
    return str(tmp_path / "socket") if way == "unix" else ("127.0.0.1", 0)


def _reached(server, address):
    return address if isinstance(address, str) else ("127.0.0.1", server.port)


def test_messages_go_both_ways_in_order(address, credentials):
    def echo(channel):
        for _ in range(100):
            channel.send(("echo", channel.receive()))

    server = Server(address, credentials, on_channel=echo)
    channel = connect(_reached(server, address), credentials).channel()
    for number in range(100):
        channel.send({"number": number})
    assert [channel.receive() for _ in range(100)] == [("echo", {"number": number}) for number in range(100)]
    channel.close()
    server.close()


@pytest.mark.parametrize("shown", ["", "wrong"])
def test_without_the_token_nothing_is_read(address, credentials, shown):
    seen = []
    server = Server(address, credentials, on_channel=lambda channel: seen.append(channel.receive()))
    stranger = Credentials(shown, credentials.certificate, credentials.key)
    with pytest.raises(ConnectionLost, match="not that of this cluster"):
        connect(_reached(server, address), stranger).channel().receive()
    with pytest.raises(ConnectionLost):
        connect(_reached(server, address), stranger).put("header", pa.schema([("x", pa.int64())])).finish()
    assert seen == []
    server.close()


def test_either_side_notices_the_others_end(credentials):
    heard = threading.Event()

    def listen(channel):
        with pytest.raises(ConnectionLost):
            channel.receive()
        with pytest.raises(ConnectionLost):
            channel.close()
            channel.send("into the void")
        heard.set()

    server = Server(("127.0.0.1", 0), credentials, on_channel=listen)
    channel = connect(("127.0.0.1", server.port), credentials).channel()
    channel.close()
    assert heard.wait(5)
    with pytest.raises(ConnectionLost):
        channel.receive()
    server.close()


def test_a_killed_peer_is_noticed_at_once(credentials):
    came, ended = threading.Event(), []

    def listen(channel):
        channel.receive()
        came.set()
        with pytest.raises(ConnectionLost):
            channel.receive()
        ended.append(time.monotonic())

    server = Server(("127.0.0.1", 0), credentials, on_channel=listen)
    program = (
        "import sys, time; from tensorflowonspark.transport import Credentials, connect\n"
        "known = Credentials.from_text(sys.stdin.readline())\n"
        f"c = connect(('127.0.0.1', {server.port}), known).channel(); c.send(1)\n"
        "print(flush=True); time.sleep(60)"
    )
    peer = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    peer.stdin.write(f"{credentials.to_text()}\n")
    peer.stdin.flush()
    peer.stdout.readline()
    assert came.wait(30)  # what a process has sent may be on its way when it dies
    killed = time.monotonic()
    os.kill(peer.pid, signal.SIGKILL)
    peer.wait()
    while not ended and time.monotonic() < killed + 5:
        time.sleep(0.01)
    assert ended
    assert ended[0] - killed < 1
    server.close()


@pytest.mark.slow
def test_a_side_that_reads_nothing_for_a_while_is_waited_for():
    """Longer than for a host that does not answer: a stopped process, or a program that takes no rows."""
    credentials = new_credentials(patience=5)
    received = []

    def listen(channel):
        time.sleep(12)
        received.extend(channel.receive() for _ in range(2))

    server = Server(("127.0.0.1", 0), credentials, on_channel=listen)
    channel = connect(("127.0.0.1", server.port), credentials).channel()
    messages = [bytes(32 << 20), b"and this"]
    for each in messages:
        channel.send(each)
    with pytest.raises(ConnectionLost, match="closed"):
        channel.receive()
    assert received == messages
    server.close()


def test_a_partition_is_taken_whole(address, credentials):
    batches = [pa.record_batch({"x": list(range(start, start + 10))}) for start in range(0, 100, 10)]

    def take(header, schema, stream):
        return header, schema.names, [value for batch in stream for value in batch["x"].to_pylist()]

    server = Server(address, credentials, on_put=take)
    stream = connect(_reached(server, address), credentials).put(("feed", 3), batches[0].schema)
    for batch in batches:
        stream.write(batch)
    assert stream.finish() == (("feed", 3), ["x"], list(range(100)))
    server.close()


def test_a_partition_that_breaks_off_does_not_count(credentials):
    outcome = []

    def take(header, schema, stream):
        try:
            outcome.append(sum(batch.num_rows for batch in stream))
        except ConnectionLost as error:
            outcome.append(str(error))
            raise

    server = Server(("127.0.0.1", 0), credentials, on_put=take)
    connection = connect(("127.0.0.1", server.port), credentials)
    stream = connection.put("header", pa.schema([("x", pa.int64())]))
    stream.write(pa.record_batch({"x": [1, 2]}))
    connection.close()  # as when the sender's process ends
    wait_for(lambda: outcome, 5)
    assert "the sender ended before the end of its partition" in outcome[0]
    server.close()


def test_a_file_that_is_refused_brings_the_reason(credentials):
    def refuse(header, schema, stream):
        next(stream)
        raise FeedError("no room")

    server = Server(("127.0.0.1", 0), credentials, on_put=refuse)
    writer = SharedFileWriter(pa.schema([("x", pa.int64())]), None)
    writer.write(pa.record_batch({"x": [1]}))
    stream = connect(("127.0.0.1", server.port), credentials).put("header", pa.schema([("x", pa.int64())]))
    with pytest.raises(ConnectionLost, match="^no room$"):
        stream.send_file(writer.finish())
    writer.close()
    server.close()


@pytest.mark.parametrize(
    ("error", "words", "logged"),
    [(FeedError("no room"), "^no room$", False), (ValueError("no number"), "^ValueError: no number$", True)],
    ids=["refusal", "error of the code"],
)
def test_what_the_receiver_raises_reaches_the_sender(credentials, caplog, error, words, logged):
    def refuse(header, schema, stream):
        raise error

    server = Server(("127.0.0.1", 0), credentials, on_put=refuse)
    stream = connect(("127.0.0.1", server.port), credentials).put("header", pa.schema([("x", pa.int64())]))
    with pytest.raises(ConnectionLost, match=words):
        stream.finish()
    server.close()
    if logged:
        wait_for(lambda: "in refuse" in caplog.text, 5)  # the traceback, where the process is
    else:
        assert not caplog.text


def _slow(port, seconds):
    """Listen at a port that passes all on to another, some moments later; return it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def move(source, sink):
        with suppress(OSError):
            while data := source.recv(512):
                time.sleep(seconds)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve():
        near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        for ends in ((near, far), (far, near)):
            threading.Thread(target=move, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


@pytest.mark.deep
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_slow_network_is_waited_for(tls):
    known = new_credentials(tls=tls)
    server = Server(("127.0.0.1", 0), known, on_put=lambda header, schema, items: sum(each.num_rows for each in items))
    peer = connect(("127.0.0.1", _slow(server.port, 0.1)), known)
    batch = pa.record_batch({"x": list(range(1000))})
    stream = peer.put("header", batch.schema)
    stream.write(batch)
    assert stream.finish() == 1000
    peer.close()
    server.close()


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no text for you")


def deeply(depth, error):
    """Raise with a traceback as long as those of Keras."""
    if depth:
        deeply(depth - 1, error)
    else:
        raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("first words " + "x" * 50_000_000), "first words x{4000}"),
        (ValueError("first words " + "é世" * 5000), "first words é世"),
        (ValueError("line 1\nline 2\0 \ud800"), "line 1\nline 2\0 .ud800"),
        (KeyError("a column"), "a column"),
        (Unspeakable(), "its __str__ raised ValueError"),
    ],
    ids=["50 MB", "not ASCII", "control characters", "KeyError", "without a text"],
)
@pytest.mark.parametrize("kind", ["put", "exchange"])
def test_an_error_of_any_length_reaches_the_peer(error, words, kind):
    def put(header, schema, items):
        list(items)
        deeply(100, error)

    def answer(header, batches):
        next(batches)
        deeply(100, error)
        yield

    known = new_credentials()
    server = Server(("127.0.0.1", 0), known, on_put=put, on_exchange=answer)
    peer = connect(("127.0.0.1", server.port), known)
    batch = pa.record_batch({"x": [1]})
    with pytest.raises(ConnectionLost, match=words) as caught:
        if kind == "put":
            stream = peer.put("header", batch.schema)
            stream.write(batch)
            stream.finish()
        else:
            list(peer.exchange("header", batch.schema).request(batch))
    assert len(str(caught.value)) < 8000
    peer.close()
    server.close()


def test_an_address_where_no_one_listens(credentials):
    with pytest.raises(ConnectionLost):
        connect(("127.0.0.1", 1), credentials).channel().receive()
