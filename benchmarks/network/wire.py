"""Bytes from one host to another by a plain socket: what the network, and two processes on these cores, can do.

python -m benchmarks.network.wire receive ADDRESS PORT
python -m benchmarks.network.wire send ADDRESS PORT BYTES
"""

import socket
import sys
import time

_CHUNK = 1 << 20


def receive(address, port):
    """Take one connection, read it to its end, and answer."""
    with socket.create_server((address, port)) as server:
        print("listens", flush=True)
        connection, _ = server.accept()
        buffer = bytearray(_CHUNK)
        while connection.recv_into(buffer):
            pass
        connection.sendall(b"end")


def send(address, port, size):
    """Send bytes; print the seconds until the other side has read all of them."""
    data = memoryview(bytes(_CHUNK))
    with socket.create_connection((address, port)) as connection:
        begin = time.perf_counter()
        for done in range(0, size, _CHUNK):
            connection.sendall(data[: size - done])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(3)
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    {"receive": receive, "send": send}[sys.argv[1]](sys.argv[2], *map(int, sys.argv[3:]))
