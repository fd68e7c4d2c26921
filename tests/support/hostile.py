"""What somebody who can reach a port or a socket might send to it, drawn by a seed."""

import pickle
import random
import socket
import ssl
import struct
from contextlib import suppress

import pyarrow as pa
from pyarrow import flight

from tensorflowonspark.config import Job, Role
from tensorflowonspark.messages import Lines, Member, Register, Returned

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SECONDS = 0.2  # for an answer; nobody waits for one
_BIG = b"x" * (4 << 20)


def frame(kind, flags, stream, payload, length=None):
    """Return a frame of HTTP/2; its length may be a lie."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """Return a header as HPACK's literal without indexing."""
    return b"\x00" + bytes([len(name)]) + name + bytes([min(127, len(value))]) + value[:127]


def call(method, *extra):
    """Return the headers of a call, as a frame."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", method), (b"te", b"trailers")]
    fields += [(b"content-type", b"application/grpc"), *extra]
    return frame(1, 4, 1, b"".join(literal(*field) for field in fields))


METHODS = [
    b"/arrow.flight.protocol.FlightService/" + name
    for name in (b"DoExchange", b"DoPut", b"DoGet", b"DoAction", b"Handshake", b"ListFlights", b"Nothing")
]


def raw_bytes(draw):
    """Return some thousand bytes: noise, or HTTP/2 that is cut off, out of order, or lies about its lengths."""
    noise = draw.randbytes(draw.randrange(1, 4000))
    good = (
        PREFACE
        + frame(4, 0, 0, b"")
        + call(draw.choice(METHODS), (b"authorization", b"Bearer " + noise.hex().encode()[:43]))
    )
    return draw.choice(
        [
            noise,
            PREFACE + noise,
            PREFACE[: draw.randrange(len(PREFACE))],
            good[: draw.randrange(len(good))],
            good + frame(0, 0, 1, b"\x00" + struct.pack(">I", 0xFFFFFFFF) + noise),  # a message of 4 GB
            good + frame(0, 0, 1, noise, length=0xFFFFFF),
            PREFACE + frame(4, 0, 0, noise[: len(noise) // 6 * 6]),
            PREFACE + frame(4, 0, 0, b"") + frame(1, 0, 1, noise) + frame(9, 0, 1, noise) * 20,  # headers without end
            PREFACE + frame(4, 0, 0, b"") + frame(6, 0, 0, b"12345678") * 500,
            PREFACE
            + frame(4, 0, 0, b"")
            + b"".join(call(METHODS[0]) + frame(3, 0, n, b"\0\0\0\1") for n in range(1, 200, 2)),
            b"\x16\x03\x01" + noise,  # the beginning of TLS
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + noise,
            bytes(draw.randrange(64 << 10)),
        ]
    )


def connected(address):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    peer = socket.socket(family)
    peer.settimeout(_SECONDS)
    peer.connect(address)
    return peer


def send_raw(draw, address, held):
    """Send bytes; then hang up, or reset, or leave the connection open."""
    peer = connected(address)
    with suppress(OSError):
        peer.sendall(raw_bytes(draw))
        if draw.random() < 0.3:
            peer.recv(4096)
    end = draw.random()
    if end < 0.2:
        held.append(peer)  # half open
        if len(held) > 100:
            held.pop(0).close()
        return
    if end < 0.4:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def flood(draw, address, held):
    """Send a message of megabytes that a header without the token announces."""
    peer = connected(address)
    with peer, suppress(OSError):
        peer.sendall(PREFACE + frame(4, 0, 0, b"") + frame(8, 0, 0, struct.pack(">I", 1 << 30)) + call(METHODS[2]))
        for _ in range(draw.randrange(1, 20)):
            peer.sendall(frame(0, 0, 1, _BIG[: 16 << 10]) * 64)


def half_tls(draw, address, held):
    """Begin TLS, without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    peer = connected(address)
    with suppress(OSError), context.wrap_socket(peer, do_handshake_on_connect=draw.random() < 0.8) as wrapped:
        wrapped.sendall(raw_bytes(draw))
        wrapped.recv(100)
    peer.close()


def _client(address):
    where = f"grpc+unix://{address}" if isinstance(address, str) else "grpc+tcp://{}:{}".format(*address)
    # A pool of its own: or the wrong token would travel through a connection that has shown the right one.
    return flight.FlightClient(where, generic_options=[("grpc.use_local_subchannel_pool", 1)])


def hostile_pickle(draw):
    """Return what unpickles to nonsense, or not at all."""
    member = Member(
        draw.randrange(-3, 99), draw.choice([Role(Job.WORKER, 99), "worker", None]), "h", draw.randrange(-9, 99999)
    )
    whole = pickle.dumps(
        draw.choice([None, 7, "x", {"a": []}, Register(member, "no", 1, 1), Lines((1, None)), Returned(b"")])
    )
    return draw.choice(
        [whole, whole[: draw.randrange(len(whole))], draw.randbytes(300), b"\x80\x05" + draw.randbytes(50), b""]
    )


def call_flight(draw, address, held, shown=b"", body=None):
    """Make a call of any kind, with a token or none."""
    body = body if body is not None else draw.choice([hostile_pickle(draw), _BIG])
    headers = (
        [(b"authorization", b"Bearer " + (shown or draw.randbytes(20).hex().encode()))]
        if shown or draw.random() < 0.9
        else []
    )
    options = flight.FlightCallOptions(timeout=1.0, headers=headers)
    schema = pa.schema([("x", pa.int64())])
    client = _client(address)
    try:
        _CALLS[draw.randrange(len(_CALLS))](client, body, options, schema)
    except (pa.ArrowException, OSError, StopIteration, NotImplementedError):
        pass
    else:
        raise AssertionError("a hostile call was answered")
    finally:
        client.close()


def _exchange(client, body, options, schema):
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b""), options)
    try:
        writer.write_metadata(body)
        reader.read_chunk()
    finally:
        writer.close()


def _converse(client, body, options, schema):
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(body or b"-"), options)
    try:
        writer.begin(schema)
        reader.read_chunk()
    finally:
        writer.close()


def _put(client, body, options, schema):
    writer, answers = client.do_put(flight.FlightDescriptor.for_command(body), schema, options)
    try:
        writer.write_metadata(body)
        writer.done_writing()
        if answers.read() is None:
            raise OSError("refused")
    finally:
        writer.close()


_CALLS = [
    _exchange,
    _converse,
    _put,
    lambda client, body, options, schema: client.do_get(flight.Ticket(body), options).read_all(),
    lambda client, body, options, schema: list(client.do_action(flight.Action("x", body), options)),
    lambda client, body, options, schema: next(iter(client.list_flights(body, options))),
    lambda client, body, options, schema: client.get_flight_info(flight.FlightDescriptor.for_command(body), options),
    lambda client, body, options, schema: client.get_schema(flight.FlightDescriptor.for_command(body), options),
    lambda client, body, options, schema: next(iter(client.list_actions(options))),
]


def messages(seed, addresses, count, token=""):
    """Send so many messages, to each address in turn; with a token, those that show it as well."""
    draw, held = random.Random(seed), []
    shown = token.encode()
    for number in range(count):
        address = addresses[number % len(addresses)]
        address = address if isinstance(address, str) else tuple(address)  # JSON knows no tuples
        kind = draw.choices(["raw", "flight", "known", "flood", "tls"], [70, 14, 14 if token else 0, 1, 1])[0]
        try:
            if kind == "known":
                call_flight(draw, address, held, shown, hostile_pickle(draw))
            else:
                {"raw": send_raw, "flight": call_flight, "flood": flood, "tls": half_tls}[kind](draw, address, held)
        except (ConnectionError, TimeoutError):
            pass
    for peer in held:
        peer.close()
