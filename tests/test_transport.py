import os
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest

from tensorflowonspark.transport import ConnectionLost, Server, dial, new_token


@pytest.fixture
def token():
    return new_token()


@pytest.fixture(params=["unix", "tcp"])
def address(request, tmp_path):
    return str(tmp_path / "socket") if request.param == "unix" else ("127.0.0.1", 0)


def _reached(server, address):
    return address if isinstance(address, str) else ("127.0.0.1", server.port)


def test_messages_go_both_ways_in_order(address, token):
    def echo(channel):
        for _ in range(100):
            channel.send(("echo", channel.receive()))

    server = Server(address, token, on_channel=echo)
    channel = dial(_reached(server, address), token).channel()
    for number in range(100):
        channel.send({"number": number})
    assert [channel.receive() for _ in range(100)] == [("echo", {"number": number}) for number in range(100)]
    channel.close()
    server.close()


@pytest.mark.parametrize("shown", ["", "wrong", "Bearer"])
def test_without_the_token_nothing_is_read(address, token, shown):
    seen = []
    server = Server(address, token, on_channel=lambda channel: seen.append(channel.receive()))
    with pytest.raises(ConnectionLost, match="does not know you"):
        dial(_reached(server, address), shown).channel().receive()
    with pytest.raises(ConnectionLost):
        dial(_reached(server, address), shown).put("header", pa.schema([("x", pa.int64())])).finish()
    assert seen == []
    server.close()


def test_either_side_hears_of_the_others_end(token):
    heard = threading.Event()

    def listen(channel):
        with pytest.raises(ConnectionLost):
            channel.receive()
        with pytest.raises(ConnectionLost):
            channel.close()
            channel.send("into the void")
        heard.set()

    server = Server(("127.0.0.1", 0), token, on_channel=listen)
    channel = dial(("127.0.0.1", server.port), token).channel()
    channel.close()
    assert heard.wait(5)
    with pytest.raises(ConnectionLost):
        channel.receive()
    server.close()


def test_a_killed_peer_is_noticed_at_once(token):
    ended = []

    def listen(channel):
        channel.receive()
        with pytest.raises(ConnectionLost):
            channel.receive()
        ended.append(time.monotonic())

    server = Server(("127.0.0.1", 0), token, on_channel=listen)
    program = (
        "import sys, time; from tensorflowonspark.transport import dial\n"
        f"c = dial(('127.0.0.1', {server.port}), sys.stdin.readline().strip()).channel(); c.send(1)\n"
        "print(flush=True); time.sleep(60)"
    )
    peer = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    peer.stdin.write(f"{token}\n")
    peer.stdin.flush()
    peer.stdout.readline()
    killed = time.monotonic()
    os.kill(peer.pid, signal.SIGKILL)
    peer.wait()
    while not ended and time.monotonic() < killed + 5:
        time.sleep(0.01)
    assert ended
    assert ended[0] - killed < 1
    server.close()


def test_a_partition_is_taken_whole(address, token):
    batches = [pa.record_batch({"x": list(range(start, start + 10))}) for start in range(0, 100, 10)]

    def take(header, schema, stream):
        return header, schema.names, [value for batch in stream for value in batch["x"].to_pylist()]

    server = Server(address, token, on_put=take)
    stream = dial(_reached(server, address), token).put(("feed", 3), batches[0].schema)
    for batch in batches:
        stream.write(batch)
    assert stream.finish() == (("feed", 3), ["x"], list(range(100)))
    server.close()


def test_a_partition_that_breaks_off_does_not_count(token):
    outcome = []

    def take(header, schema, stream):
        try:
            outcome.append(sum(batch.num_rows for batch in stream))
        except ConnectionLost as error:
            outcome.append(str(error))
            raise

    server = Server(("127.0.0.1", 0), token, on_put=take)
    connection = dial(("127.0.0.1", server.port), token)
    stream = connection.put("header", pa.schema([("x", pa.int64())]))
    stream.write(pa.record_batch({"x": [1, 2]}))
    stream._writer.done_writing()  # as when the sender's process ends
    with pytest.raises(pa.ArrowException):
        _ = stream._answers.read() or stream._writer.close()
    assert outcome == ["the sender ended before the end of its partition"]
    server.close()


def test_what_the_receiver_raises_reaches_the_sender(token):
    def refuse(header, schema, stream):
        raise ValueError("no room for these rows")

    server = Server(("127.0.0.1", 0), token, on_put=refuse)
    stream = dial(("127.0.0.1", server.port), token).put("header", pa.schema([("x", pa.int64())]))
    with pytest.raises(ConnectionLost, match="no room for these rows"):
        stream.finish()
    server.close()


def test_an_address_where_no_one_listens(token):
    with pytest.raises(ConnectionLost):
        dial(("127.0.0.1", 1), token).channel().receive()
