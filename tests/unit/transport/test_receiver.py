"""Channels that one thread receives from: each has its messages in order, and none holds up the others."""

import socket
import struct
import threading
from functools import partial

import pytest

from tensorflowonspark.transport import ConnectionLost, Listener, Server, connect, new_credentials
from tensorflowonspark.transport.framed_socket import Frame
from tests.support.programs import wait_for


class Heard:
    """What a server has received, by channel in the order in which they came, and in which threads."""

    def __init__(self, on_message=None):
        self.messages, self.ends, self.channels = [], [], []
        self.threads = set()
        self._on_message = on_message

    def serve(self, channel):
        number = len(self.channels)
        self.channels.append(channel)
        self.messages.append([])
        return Listener(partial(self._take, number), partial(self._end, number))

    def _take(self, number, message):
        self.threads.add(threading.current_thread())
        self.messages[number].append(message)
        if self._on_message is not None:
            self._on_message(message)

    def _end(self, number):
        self.ends.append(number)


@pytest.fixture(params=[False, True], ids=["tcp", "tls"])
def credentials(request):
    return new_credentials(tls=request.param)


@pytest.fixture
def served(credentials):
    """Yield a function that has a server with `Heard`, and returns it with a function that opens a channel to it."""
    servers = []

    def serve(on_message=None):
        heard = Heard(on_message)
        server = Server(("127.0.0.1", 0), credentials, on_channel=heard.serve)
        servers.append(server)

        def channel():
            number = len(heard.channels)
            opened = connect(("127.0.0.1", server.port), credentials).channel()
            wait_for(lambda: len(heard.channels) > number)
            return opened

        return heard, channel

    yield serve
    for each in servers:
        each.close()


@pytest.mark.deep
def test_many_channels_have_one_thread(served):
    heard, channel = served()
    before = set(threading.enumerate())
    channels = [channel() for _ in range(20)]
    wait_for(lambda: not any(each.name == "connection" for each in set(threading.enumerate()) - before))
    sizes = (0, 1, 70_000, 3_000_000)  # less than what is received at once, and more
    for size in sizes:
        for number, each in enumerate(channels):
            each.send((number, bytes(size)))
    for each in channels:
        each.close()
    wait_for(lambda: len(heard.ends) == len(channels))
    for number, messages in enumerate(heard.messages):
        assert messages == [(number, bytes(size)) for size in sizes]
    assert len(heard.threads) == 1
    assert sorted(heard.ends) == list(range(20))


def test_who_sends_half_a_message_or_very_many_holds_up_nobody(served):
    heard, channel = served()
    half, busy, other = channel(), channel(), channel()
    half._socket.send_bytes(struct.pack(">BQ", Frame.MESSAGE, 1000) + b"a half")
    ended = threading.Event()

    def send():
        while not ended.is_set():
            busy.send("again")

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for number in range(20):
            other.send(number)
            wait_for(lambda number=number: number in heard.messages[2])
    finally:
        ended.set()
        sender.join(30)
    half.close()
    wait_for(lambda: 0 in heard.ends)
    assert heard.messages[0] == []


@pytest.mark.parametrize(
    "sent",
    [struct.pack(">BQ", Frame.MESSAGE, 1 << 40), struct.pack(">BQ", 99, 1), struct.pack(">BQ", Frame.END, 0), bytes(9)],
    ids=["too large", "an unknown kind", "not a message", "zeros"],
)
def test_what_is_no_message_ends_its_channel_alone(served, sent):
    heard, channel = served()
    wrong, other = channel(), channel()
    wrong.send("before")
    wrong._socket.send_bytes(sent)
    with pytest.raises(ConnectionLost):
        wrong.receive()
    other.send("after")
    wait_for(lambda: heard.messages[1] == ["after"])
    assert (heard.messages[0], heard.ends) == (["before"], [0])


def test_an_error_of_a_listener_ends_its_channel_alone(served, caplog):
    heard, channel = served(lambda message: 1 / message)
    wrong, other = channel(), channel()
    wrong.send(0)
    with pytest.raises(ConnectionLost):
        wrong.receive()
    other.send(1)
    wait_for(lambda: heard.messages[1] == [1])
    assert heard.ends == [0]
    wait_for(lambda: "ZeroDivisionError" in caplog.text)


def test_messages_go_back_while_others_come(served):
    heard, channel = served()
    mine = channel()
    for number in range(100):
        mine.send(number)
        heard.channels[0].send(-number)
        assert mine.receive() == -number
    wait_for(lambda: heard.messages == [list(range(100))])


@pytest.mark.deep
def test_the_thread_ends_with_the_server(credentials):
    heard = Heard()
    server = Server(("127.0.0.1", 0), credentials, on_channel=heard.serve)
    channel = connect(("127.0.0.1", server.port), credentials).channel()
    channel.send("hello")
    wait_for(lambda: heard.messages == [["hello"]])
    (thread,) = heard.threads
    server.close()
    with pytest.raises(ConnectionLost):
        channel.receive()
    thread.join(5)
    assert not thread.is_alive()
    assert heard.ends == [0]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), 1)
