"""A TCP port in front of a server that forwards at most a few kilobytes until a peer has authenticated itself.

gRPC reads the whole message of a call before it checks whether the caller is authorized: gigabytes, from anyone who can
reach the port. It accepts any number of connections and gives each two minutes for a handshake, so unauthenticated
peers use up the files that the process may open. The server therefore listens where only this process can connect, and
the proxy listens on the port. It searches the first bytes of a connection for a proof of membership
(`authentication`), and then forwards bytes in both directions without reading them.

One thread serves all connections that are not authenticated, so that a thousand peers may connect at the same time.
It also serves the authenticated ones that carry few bytes; those that carry rows have two threads each.
"""

import select
import socket
import struct
import time
from collections.abc import Callable
from threading import Thread

from tensorflowonspark.transport.authentication import Authentication
from tensorflowonspark.transport.splicing import SplicedConnections, shut_down

__all__ = ["AuthProxy"]

_AUTHENTICATION_BYTES = 16 << 10  # before the token: settings and the headers of one call take less than 1 KiB
_AUTHENTICATION_SECONDS = 10.0  # for the same; it takes milliseconds unless the host is very busy
_MAX_UNAUTHENTICATED = 64  # connections, unless more are expected; at one more, the oldest is closed
_BACKLOG = 4096  # connections that wait in the kernel until they are accepted; it may allow fewer
_ACCEPTED_AT_ONCE = 16  # before others are served
_NO_FILES_SECONDS = 0.05  # until the next attempt, when this process has no free file descriptor
_CONNECT_SECONDS = 2  # to the server, in this process; and for the proxy's thread to end
_BUFFER_BYTES = 256 << 10
# For a peer to acknowledge bytes, as long as the peers' own keepalive takes. The driver sends to nodes under its lock:
# without a limit, one whose host has vanished would hold up all for a quarter of an hour.
_UNANSWERED_SECONDS = 20


class _End:
    """One socket of a connection: the peer's or the server's."""

    __slots__ = ("ended", "link", "mask", "other", "socket", "unsent")

    def __init__(self, link: "_Link", own: socket.socket) -> None:
        self.link = link
        self.socket = own
        self.other: _End | None = None  # None: the proxy has not connected to the server yet
        self.unsent = b""  # for it, and not taken yet
        self.ended = False  # it sends no more
        self.mask = 0  # the events that the proxy waits for


class _Link:
    """A connection of a peer through the proxy."""

    __slots__ = ("answered", "authentication", "deadline", "peer", "prefix", "room", "server")

    def __init__(self, peer: socket.socket, authentication: Authentication) -> None:
        self.peer = _End(self, peer)
        self.server: _End | None = None
        self.authentication: Authentication | None = authentication  # None: it is complete
        self.deadline = time.monotonic() + _AUTHENTICATION_SECONDS
        self.answered = False  # by the server
        self.prefix = b""
        self.room = _AUTHENTICATION_BYTES  # for the peer's bytes until then


class AuthProxy:
    """Binds a TCP port until `close`, and forwards authenticated connections from `open` on.

    Parameters
    ----------
    address : (str, int)
        Host and port; port 0 selects a free one.
    authentication : callable
        Returns the `Authentication` of a new connection.
    bulk : bool
        Whether authenticated connections carry many bytes: then each has two threads, and the kernel moves the bytes.

    Raises
    ------
    OSError
        If the port can't be bound.
    """

    def __init__(
        self, address: tuple[str, int], authentication: Callable[[], Authentication], *, bulk: bool = True
    ) -> None:
        self._authentication = authentication
        self._bulk = bulk
        self._listener = _listen(address)
        self.port = int(self._listener.getsockname()[1])
        self._upstream: str | tuple[str, int] = ""
        self._max_unauthenticated = _MAX_UNAUTHENTICATED
        self._poll = select.epoll()
        self._ends: dict[int, _End] = {}  # by file descriptor, of all connections that the proxy's thread serves
        self._unauthenticated: dict[_Link, None] = {}  # by deadline
        self._paused_until = 0.0  # accepts no connection until then
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._thread = Thread(target=self._run, name="auth-proxy", daemon=True)
        self._spliced = SplicedConnections()
        self._closed = False

    def expect(self, peers: int) -> None:
        """Allow this number of peers to authenticate themselves at once, if it is above the default."""
        self._max_unauthenticated = max(peers, self._max_unauthenticated)

    def open(self, upstream: str | tuple[str, int]) -> None:
        """Begin to forward connections to the Unix socket of this path, or to this host and port."""
        self._upstream = upstream
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.EPOLLIN)
        self._thread.start()

    def close(self) -> None:
        """Close the port and every connection through it."""
        self._closed = True
        shut_down(self._listener)  # wakes the proxy's thread
        self._spliced.close()
        if self._thread.is_alive():
            self._thread.join(_CONNECT_SECONDS)
        self._listener.close()

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._closed:
                for descriptor, events in self._poll.poll(self._seconds()):
                    end = self._ends.get(descriptor)
                    if end is not None:
                        self._serve(end, events)
                    elif descriptor == self._listener.fileno():
                        self._accept()
                self._check_time()
        finally:
            for end in list(self._ends.values()):
                self._drop(end.link)
            self._poll.close()

    def _seconds(self) -> float | None:
        """Return the time until something is due, or None."""
        due = [self._paused_until] if self._paused_until else []
        if self._unauthenticated:
            due.append(next(iter(self._unauthenticated)).deadline)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _check_time(self) -> None:
        now = time.monotonic()
        while self._unauthenticated and (oldest := next(iter(self._unauthenticated))).deadline <= now:
            self._drop(oldest)
        if self._paused_until and self._paused_until <= now and not self._closed:
            self._paused_until = 0.0
            self._poll.register(self._listener, select.EPOLLIN)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                peer, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # closed; or this process has no free file descriptor, and may soon have one
                self._poll.unregister(self._listener)
                self._paused_until = time.monotonic() + _NO_FILES_SECONDS
                return
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNANSWERED_SECONDS)
            link = _Link(peer, self._authentication())
            self._unauthenticated[link] = None
            self._ends[peer.fileno()] = link.peer
            try:
                self._watch(link.peer)
            except OSError:  # the kernel watches no more sockets of this user
                self._drop(link)
            if len(self._unauthenticated) > self._max_unauthenticated:
                self._drop(next(iter(self._unauthenticated)))

    def _serve(self, end: _End, events: int) -> None:
        """Move what a socket has sent or can take."""
        try:
            if events & select.EPOLLOUT and end.unsent:
                end.unsent = end.unsent[end.socket.send(end.unsent) :]
                if end.unsent:
                    return
                if end.other is not None:
                    self._after(end.other)
            if events & ~select.EPOLLOUT:
                self._receive(end)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(end.link)

    def _receive(self, end: _End) -> None:
        link = end.link
        authentication = link.authentication
        if end.other is None:
            self._receive_prefix(link)
            return
        limit = _BUFFER_BYTES
        if authentication is not None:
            limit = min(link.room, _AUTHENTICATION_BYTES) if end is link.peer else _AUTHENTICATION_BYTES
        if end.ended or end.other.unsent or not limit:
            # It has nothing to read, but its other side has closed the connection, or it is broken.
            self._drop(link)
            return
        count = end.socket.recv_into(self._buffer, limit)
        if count:
            data = self._buffer[:count]
            sent = _send(end.other.socket, data)
            if sent < count:
                end.other.unsent = bytes(data[sent:])
            if authentication is not None and not self._authenticate(end, authentication, bytes(data)):
                return
        elif authentication is not None:
            self._drop(link)
            return
        else:
            end.ended = True
        if not count or end.other.unsent or authentication is not None:
            self._after(end)

    def _after(self, end: _End) -> None:
        """Pass an end on once all bytes before it are sent, and watch both sockets for what they are to do next."""
        other = end.other
        assert other is not None
        if end.ended and not other.unsent:
            other.socket.shutdown(socket.SHUT_WR)
            if other.ended and not end.unsent:
                self._drop(end.link)
                return
        self._watch(end)
        self._watch(other)

    def _watch(self, end: _End) -> None:
        """Wait for the events of a socket that can be handled."""
        link = end.link
        if end.socket.fileno() not in self._ends:
            return  # it has its own threads now, or is closed
        muted = end.ended or (end is link.peer and link.authentication is not None and link.room <= 0)
        reads = not muted and not (end.other is not None and end.other.unsent)
        mask = select.EPOLLIN * reads | select.EPOLLOUT * bool(end.unsent)
        if mask != end.mask:
            if not end.mask:
                self._poll.register(end.socket, mask)
            elif mask:
                self._poll.modify(end.socket, mask)
            else:
                self._poll.unregister(end.socket)  # else the end of its other side would be reported for ever
            end.mask = mask

    # ---- authentication

    def _receive_prefix(self, link: _Link) -> None:
        """Receive the first bytes, and connect to the server once they are those of a member."""
        assert link.authentication is not None
        expected = link.authentication.prefix
        data = link.peer.socket.recv(len(expected) - len(link.prefix))
        link.prefix += data
        if not data or not expected.startswith(link.prefix):
            self._drop(link)
        elif len(link.prefix) == len(expected):
            self._connect(link)

    def _connect(self, link: _Link) -> None:
        assert link.authentication is not None
        peer = link.peer
        family = socket.AF_UNIX if isinstance(self._upstream, str) else socket.AF_INET
        server = socket.socket(family)
        link.server = peer.other = _End(link, server)
        peer.other.other = peer
        self._ends[server.fileno()] = peer.other
        # Not Python's time-out, with which a Unix socket does not wait while many others connect.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _CONNECT_SECONDS, 0))
        try:
            server.connect(self._upstream)
        except BlockingIOError as error:
            raise TimeoutError from error
        server.setblocking(False)
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.sendall(link.prefix)  # into an empty buffer
        link.authentication.on_peer_bytes(link.prefix)
        link.room -= len(link.prefix)
        self._watch(peer.other)

    def _authenticate(self, end: _End, authentication: Authentication, data: bytes) -> bool:
        """Process bytes of an unauthenticated connection; return whether the proxy's thread serves it any longer."""
        link = end.link
        if end is link.peer:
            link.room -= len(data)
            complete = authentication.on_peer_bytes(data)
        else:
            complete = authentication.on_server_bytes(data)
            if not link.answered:
                # The time for which a busy server kept the peer waiting does not count.
                link.answered = True
                link.deadline = time.monotonic() + _AUTHENTICATION_SECONDS
                self._unauthenticated[link] = self._unauthenticated.pop(link)
        if complete:
            del self._unauthenticated[link]
            link.authentication = None
            return not self._bulk or self._hand_over(link)
        if link.room <= 0 and not authentication.by_server:
            self._drop(link)
            return False
        return True

    def _hand_over(self, link: _Link) -> bool:
        """Give an authenticated connection its own threads; return False: this thread serves it no longer."""
        assert link.server is not None
        self._forget(link.peer)
        self._forget(link.server)
        self._spliced.add(link.peer.socket, link.server.socket, link.peer.unsent, link.server.unsent)
        return False

    def _drop(self, link: _Link) -> None:
        """Close a connection."""
        self._unauthenticated.pop(link, None)
        for end in (link.peer, link.server):
            if end is not None and end.socket.fileno() in self._ends:
                self._forget(end)
                shut_down(end.socket)  # a forked child may hold it too
                end.socket.close()

    def _forget(self, end: _End) -> None:
        del self._ends[end.socket.fileno()]
        if end.mask:
            self._poll.unregister(end.socket)
            end.mask = 0


def _send(sink: socket.socket, data: memoryview) -> int:
    try:
        return sink.send(data)
    except BlockingIOError:
        return 0


def _listen(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens at the first address of a host name that can be bound."""
    problem = OSError(f"no address of {address[0]}")
    for family, _, _, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        try:
            return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            problem = error
    raise problem
