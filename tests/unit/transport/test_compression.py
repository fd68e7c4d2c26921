"""Batches on a slow network: compressed where that makes them smaller, and the same on the other side."""

import numpy as np
import pyarrow as pa
import pytest

from tensorflowonspark.transport import Server, compression, connect, new_credentials
from tensorflowonspark.transport.framed_socket import Frame, FramedSocket

_ROWS = 20_000
_NUMBERS = np.random.default_rng(1)
KINDS = {  # a batch, and how it is sent on a slow network
    "zeros": (pa.record_batch({"x": np.zeros(_ROWS)}), Frame.STREAM),
    "noise": (pa.record_batch({"x": np.frombuffer(_NUMBERS.bytes(8 * _ROWS), np.uint64)}), Frame.BATCH),
    "words": (pa.record_batch({"x": pa.array(["a", None, "b"] * _ROWS).dictionary_encode()}), Frame.STREAM),
    "lists": (pa.record_batch({"x": pa.array([[1.0], None, [], [2.0, 3.0]] * _ROWS)}), Frame.STREAM),
    "few rows": (pa.record_batch({"x": np.zeros(100)}), Frame.BATCH),
}


@pytest.fixture
def sent(monkeypatch):
    """The kinds of the frames with batches that are sent."""
    kinds, send = [], FramedSocket.send

    def note(self, kind, data=b""):
        kinds.extend([kind] if kind in (Frame.BATCH, Frame.STREAM) else [])
        send(self, kind, data)

    monkeypatch.setattr(FramedSocket, "send", note)
    return kinds


def _exchange(batch):
    """Return a batch that a server has sent back."""
    credentials = new_credentials()
    server = Server(("127.0.0.1", 0), credentials, on_exchange=lambda _header, batches: batches)
    exchange = connect(("127.0.0.1", server.port), credentials).exchange("header", batch.schema)
    (back,) = exchange.request(batch)
    exchange.close()
    server.close()
    return back


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_on_a_slow_network(kind, sent, monkeypatch):
    monkeypatch.setattr(compression, "is_slow", lambda _socket: True)
    batch, frame = KINDS[kind]
    assert _exchange(batch).equals(batch)
    assert sent == [frame, frame]


@pytest.mark.parametrize(
    ("speeds", "frame"),
    [({"127.0.0.1": 1e9}, Frame.BATCH), ({"127.0.0.1": 12e6}, Frame.STREAM), ({}, Frame.BATCH)],
    ids=["fast", "slow", "unknown"],
)
def test_a_connection_is_as_fast_as_the_last_one_to_its_host(speeds, frame, sent, monkeypatch):
    monkeypatch.setattr(compression, "_speeds", speeds)
    batch, _ = KINDS["zeros"]
    assert _exchange(batch).equals(batch)
    assert sent == [frame, frame]


def test_rows_that_stay_as_large_are_tried_again_later(monkeypatch):
    monkeypatch.setattr(compression, "is_slow", lambda _socket: True)
    monkeypatch.setattr(compression, "_PAUSE_BYTES", 20 * _ROWS)
    connection = compression.Compression(None)
    noise, zeros = KINDS["noise"][0], KINDS["zeros"][0]
    found = [connection.compress(each) for each in (noise, zeros, noise, zeros, zeros)]
    assert [each is None for each in found] == [True, True, True, True, False]
