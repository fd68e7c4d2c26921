"""Addresses that this host reaches, with small packets and with large ones."""

import fcntl
import os
import socket
import sys
import termios
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

_SECONDS, _MOST_AT_ONCE = 2.0, 64  # for an answer, where it is only asked whether there is one
_LOOK_SECONDS = 0.01
# What a server of gRPC, as TensorFlow's, takes without a word, and any other one drops: how HTTP/2 begins, and frames
# of a type that there is not. These fill packets of any size, and no link can compress them.
_SMALL = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_BYTES, _FRAMES = 16384, 4
_HEAD = _FRAME_BYTES.to_bytes(3, "big") + bytes([0xFB, 0, 0, 0, 0, 0])
ONLY_SMALL = "small packets arrive, and large ones do not: an MTU black hole"
MTU_ADVICE = (
    "give the interfaces of both hosts the MTU that the path between them has (ip link set dev eth0 mtu 1400), have "
    "firewalls on it pass ICMP, or set net.ipv4.tcp_mtu_probing=1 on both"
)


def is_listening(address: str) -> bool:
    """Return whether a process listens at an address, as in ``"host:port"``."""
    return not why_unreached(address, large=False)


def unreached(addresses: Collection[str]) -> dict[str, str]:
    """Return the addresses, as in ``"host:port"``, that this process can't reach with packets of all sizes, and why."""
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(addresses)) or 1) as pool:
        reasons = pool.map(why_unreached, addresses)
        return {address: reason for address, reason in zip(addresses, reasons, strict=True) if reason}


def why_unreached(address: str, seconds: float = _SECONDS, *, large: bool = True) -> str:
    """Return why this process can't connect to an address, or can't send large packets to it; empty if it can.

    The kernel of the other host acknowledges them, whatever the process there does with them.

    The address is as ``"host:port"``, the seconds are for an answer to each size of packets.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as connection:
            if not large or not _arrives(connection, _SMALL, seconds):
                return ""
            frames = (_HEAD + os.urandom(_FRAME_BYTES) for _ in range(_FRAMES))
            return "" if _arrives(connection, b"".join(frames), seconds) else ONLY_SMALL
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _arrives(connection: socket.socket, data: bytes, seconds: float) -> bool:
    """Send data; return whether the other host acknowledges a part of it, or ends the connection."""
    end = time.monotonic() + seconds
    try:
        connection.setblocking(False)
        sent = connection.send(data)
        while _unacknowledged(connection) >= sent and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_SECONDS)
    except OSError:  # it has been there to end it
        pass
    return True


def _unacknowledged(connection: socket.socket) -> int:
    """Return how many bytes the other host has not acknowledged."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
