"""What somebody who can reach a port or a socket might send to it, drawn by a seed."""

import hmac
import pickle
import random
import socket
import ssl
import struct
from contextlib import suppress

import pyarrow as pa

from tensorflowonspark.config import Job, Role
from tensorflowonspark.messages import Lines, Member, Register, Returned
from tensorflowonspark.transport import handshake
from tensorflowonspark.transport.framed_socket import Frame

PROTOCOL = handshake._PROTOCOL
HELLO = PROTOCOL + bytes(32) + b"\0\0"  # a nonce, and no node's identity
_SECONDS = 0.2  # for an answer; nobody waits for one
_BIG = b"x" * (4 << 20)


def frame(kind, payload=b"", length=None):
    """Return a frame; its length may be a lie."""
    return struct.pack(">BQ", kind, len(payload) if length is None else length) + payload


def raw_bytes(draw):
    """Return some thousand bytes: noise, other protocols, or ours that is cut off, out of order, or lies."""
    noise = draw.randbytes(draw.randrange(1, 4000))
    good = HELLO + draw.randbytes(32) + frame(Frame.CALL, pickle.dumps(("channel", None)))
    return draw.choice(
        [
            noise,
            PROTOCOL + noise,
            PROTOCOL[: draw.randrange(len(PROTOCOL))],
            good[: draw.randrange(len(good))],
            good + noise,
            good + frame(Frame.MESSAGE, hostile_pickle(draw)),
            good + frame(Frame.BATCH, noise, length=1 << 39),
            PROTOCOL + bytes(32) + b"\xff\xff" + noise,  # an identity of 64 kB
            HELLO + frame(Frame.CALL, hostile_pickle(draw)) * 20,  # no proof
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise,
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


def proved(peer, token, identity=b""):
    """Say that one is a member, as one who has a token, right or wrong, and believes every server."""
    peer.sendall(PROTOCOL + bytes(32) + struct.pack(">H", len(identity)) + identity)
    answer = b""
    while len(answer) < 8 + 32 + 1 + 32:
        came = peer.recv(100)
        if not came:
            raise ConnectionResetError
        answer += came
    seen = bytes(32) + answer[8:40] + identity
    peer.sendall(hmac.digest(token, b"client" + answer[40:41] + b"\0" + seen, "sha256"))


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
    """Send a message of megabytes without the token."""
    peer = connected(address)
    with peer, suppress(OSError):
        peer.sendall(HELLO + bytes(32) + frame(Frame.BATCH, length=1 << 30))
        for _ in range(draw.randrange(1, 20)):
            peer.sendall(_BIG)


def half_tls(draw, address, held):
    """Begin TLS, without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    peer = connected(address)
    with suppress(OSError), context.wrap_socket(peer, do_handshake_on_connect=draw.random() < 0.8) as wrapped:
        wrapped.sendall(raw_bytes(draw))
        wrapped.recv(100)
    peer.close()


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


def call(draw, address, token):
    """Make a call of any kind, as one who has a token, which may be the right one."""
    schema = pa.schema([("x", pa.int64())]).serialize().to_pybytes()
    begun = frame(Frame.CALL, pickle.dumps((draw.choice(["channel", "put", "exchange", "none", 7]), "header")))
    body = hostile_pickle(draw)
    kind = draw.choice([*Frame, 0, 77])
    with connected(address) as peer:
        proved(peer, token)
        with suppress(OSError):
            peer.sendall(
                draw.choice(
                    [
                        frame(Frame.CALL, body),
                        begun + frame(kind, body),
                        begun + frame(kind, body, length=1 << 62),
                        begun + frame(Frame.SCHEMA, schema) + frame(Frame.BATCH, body),
                        begun + frame(Frame.SCHEMA, schema) + frame(Frame.FILE, body),
                        begun + frame(Frame.SCHEMA, schema) + frame(kind, body),
                        begun + frame(Frame.SCHEMA, body),
                    ]
                )
            )
            peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass


def messages(seed, addresses, count, token=""):
    """Send so many messages, to each address in turn; with a token, those of its holder as well."""
    draw, held = random.Random(seed), []
    for number in range(count):
        address = addresses[number % len(addresses)]
        address = address if isinstance(address, str) else tuple(address)  # JSON knows no tuples
        kind = draw.choices(["raw", "stranger", "known", "flood", "tls"], [70, 14, 14 if token else 0, 1, 1])[0]
        with suppress(ConnectionError, TimeoutError):
            if kind in ("known", "stranger"):
                call(draw, address, token.encode() if kind == "known" else draw.randbytes(20))
            else:
                {"raw": send_raw, "flood": flood, "tls": half_tls}[kind](draw, address, held)
    for peer in held:
        peer.close()
