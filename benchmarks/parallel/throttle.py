"""Networks of a given speed: proxies between workers, whose bytes pass through token buckets."""

import socket
import time
from contextlib import suppress
from threading import Lock, Thread

_CHUNK = 1 << 14


class Bucket:
    """One direction of a worker's network: bytes pass at a rate, and at most a tenth of a second's at once.

    Parameters
    ----------
    megabits : float
        Per second.
    """

    def __init__(self, megabits):
        self._rate = megabits * 1e6 / 8
        self._free_at = time.monotonic()
        self._lock = Lock()
        self.bytes = 0

    def take(self, size):
        """Wait until some bytes may pass."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.01) + size / self._rate
            wait = self._free_at - now
            self.bytes += size
        if wait > 0.001:  # a sleep takes longer than that
            time.sleep(wait)


class Network:
    """The network of some workers, each with a bucket in each direction.

    Parameters
    ----------
    megabits : float
        Per second, worker and direction.
    """

    def __init__(self, megabits):
        self._megabits = megabits
        self._buckets = {}
        self._listeners = {}

    def bucket(self, number, direction):
        """Return a worker's bucket for what it sends or receives."""
        return self._buckets.setdefault((number, direction), Bucket(self._megabits))

    def port(self, sender, receiver, port):
        """Return the port by which one worker reaches another one's."""
        key = sender, receiver, port
        if key not in self._listeners:
            listener = socket.create_server(("127.0.0.1", 0))
            self._listeners[key] = listener
            Thread(target=self._accept, args=key, daemon=True).start()
        return self._listeners[key].getsockname()[1]

    def _accept(self, sender, receiver, port):
        listener = self._listeners[sender, receiver, port]
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                for path in ((client, server, sender, receiver), (server, client, receiver, sender)):
                    path[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    Thread(target=self._forward, args=path, daemon=True).start()

    def _forward(self, source, target, sender, receiver):
        out, into = self.bucket(sender, "out"), self.bucket(receiver, "in")
        with suppress(OSError), source, target:
            while data := source.recv(_CHUNK):
                out.take(len(data))
                into.take(len(data))
                target.sendall(data)

    def close(self):
        """Stop listening."""
        for listener in self._listeners.values():
            listener.close()

    def attach(self, member):
        """Have a `RoundMember` reach the others through the network."""
        connection = member._connection
        own = member._setup.number

        def throttled(peer):
            port = self.port(own, peer.number, peer.port)
            return connection(type(peer)(peer.number, peer.name, peer.host, port))

        member._connection = throttled
