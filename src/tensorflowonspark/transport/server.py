"""Servers, which accept messages only from peers that have shown the token, and their Unix sockets."""

import ctypes
import hmac
import logging
import os
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import flight

from tensorflowonspark.errors import ClusterError, error_text
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport.auth_proxy import AuthProxy
from tensorflowonspark.transport.authentication import TlsAuthentication, TokenAuthentication
from tensorflowonspark.transport.channel import Channel
from tensorflowonspark.transport.credentials import Credentials
from tensorflowonspark.transport.shared_file import FileRef, open_shared
from tensorflowonspark.transport.wire import (
    END_MARK,
    HEADER_BYTES,
    MESSAGE_BYTES,
    NODE_HEADER,
    NOT_OPENED,
    TAKEN,
    TOKEN_HEADER,
    ConnectionLost,
    bearer,
    location,
    pack,
    unpack,
)

__all__ = ["ChannelHandler", "ExchangeHandler", "Mapped", "PutHandler", "Server", "UnlinkedSocket", "short_path"]

_PATH_BYTES = 107  # sockaddr_un.sun_path without its terminating zero, man 7 unix


def short_path(socket: Path) -> str:
    """Return a path at which this process can listen on a socket; it is short enough for the kernel.

    The limit is 107 bytes, and paths in Spark's local directories are longer. On Linux the path leads through ``/proc``
    to a directory that this process has open until it ends.
    """
    if len(os.fsencode(socket)) <= _PATH_BYTES or sys.platform != "linux":
        return str(socket)
    descriptor = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/self/fd/{descriptor}/{socket.name}"


class UnlinkedSocket:
    """A socket that only this process can reach: its path is removed once a server listens on it.

    Parameters
    ----------
    directory : str
        For its path until then, preferably one that is removed with this process; by default the system's.

    Attributes
    ----------
    path : str
        The path to listen on.
    """

    def __init__(self, directory: str = "") -> None:
        self._directory = tempfile.mkdtemp(prefix="tfos-", dir=directory or None)  # which only this user can enter
        self._entry = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        self.path = f"/proc/self/fd/{self._entry}/hidden"  # a temporary directory's own path may be too long
        self._socket = -1

    def hide(self) -> str:
        """Remove the path; return one by which only this process reaches the socket."""
        self._socket = os.open(self.path, os.O_PATH)
        self._remove()
        return f"/proc/self/fd/{self._socket}"

    def close(self) -> None:
        """Close the socket's descriptors."""
        if self._socket < 0:
            self._remove()  # no server has listened
        else:
            os.close(self._socket)
        os.close(self._entry)

    def _remove(self) -> None:
        Path(self.path).unlink(missing_ok=True)
        Path(self._directory).rmdir()


_log = logging.getLogger(__name__)
_CLOSING_SECONDS = 2.0
_servers: "weakref.WeakSet[Server]" = weakref.WeakSet()
_ERROR_BYTES, _ELLIPSIS = 5000, 8
_LOOPBACK = ("127.0.0.1", 0)  # a server with TLS listens here, behind its proxy

PutHandler = Callable[[Any, pa.Schema, Iterator["pa.RecordBatch | Mapped"]], Any]
ExchangeHandler = Callable[[Any, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
ChannelHandler = Callable[["Channel"], None]


@dataclass(frozen=True)
class Mapped:
    """Batches in a file that the sender has passed."""

    batches: list[pa.RecordBatch]
    size: int  # of the file


class Server(flight.FlightServerBase):
    """Listens on a Unix socket's path, or a host and port, until ``close``.

    A Unix socket is protected by its directory and the token. A port is protected by an `AuthProxy`, through which a
    peer reaches the server only after it has shown the token or, with TLS, finished the handshake, in which both sides
    present the certificate.

    Parameters
    ----------
    address : str or (str, int)
        Path, or host and port; port 0 selects a free one.
    credentials : Credentials
        Those that a peer must show.
    directory : str
        For temporary files, preferably one that is removed with this process.
    identity : str
        Of its node: calls that are for another one are refused. Addresses and paths may lead to a wrong node: those of
        two containers can be alike, and a port passes from one process to the next. Empty: all calls are for it.
    on_channel : callable, optional
        Called with each new channel, in a separate thread; the channel ends when it returns.
    on_put : callable, optional
        Called with the header, schema and batches of each stream; returns the reply.
    on_exchange : callable, optional
        Called with the header and batches of each exchange; yields a batch for each.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        credentials: Credentials,
        *,
        directory: str = "",
        identity: str = "",
        on_channel: ChannelHandler | None = None,
        on_put: PutHandler | None = None,
        on_exchange: ExchangeHandler | None = None,
    ) -> None:
        _servers.add(self)
        self._proxy: AuthProxy | None = None
        self._socket: UnlinkedSocket | None = None
        self._has_rows = on_put is not None or on_exchange is not None
        try:
            self._listen(address, credentials, directory, {"peer": _PeerCheck(credentials.token, identity)})
        except BaseException:
            for each in (self._proxy, self._socket):
                if each is not None:
                    each.close()
            raise
        self._on_channel = on_channel
        self._on_put = on_put
        self._on_exchange = on_exchange

    def _listen(
        self,
        address: str | tuple[str, int],
        credentials: Credentials,
        directory: str,
        checks: dict[str, flight.ServerMiddlewareFactory],
    ) -> None:
        if isinstance(address, str):
            super().__init__(location(address), middleware=checks)
        elif credentials.certificate:
            own = credentials.certificate.encode()
            self._proxy = AuthProxy(address, partial(TlsAuthentication, credentials.certificate), bulk=self._has_rows)
            # Flight supports TLS on ports only. Only this host reaches this one, which requires the certificate too.
            super().__init__(
                location(_LOOPBACK, tls=True),
                tls_certificates=[(own, credentials.key.encode())],
                verify_client=True,
                root_certificates=own,
                middleware=checks,
            )
            self._proxy.open((_LOOPBACK[0], int(super().port)))
        else:
            self._proxy = AuthProxy(address, partial(TokenAuthentication, credentials.token), bulk=self._has_rows)
            self._socket = UnlinkedSocket(directory)
            super().__init__(location(self._socket.path), middleware=checks)
            self._proxy.open(self._socket.hide())

    @property
    def port(self) -> int:
        """The TCP port."""
        return self._proxy.port if self._proxy is not None else int(super().port)

    def expect(self, peers: int) -> None:
        """Allow this number of peers, if it is above the default, to connect to the port at the same time."""
        if self._proxy is not None:
            self._proxy.expect(peers)

    def do_exchange(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serve one channel or exchange (called by Flight)."""
        with _errors_to_peer():
            if descriptor.command:
                self._serve_exchange(unpack(descriptor.command, HEADER_BYTES), reader, writer)
                return
            if self._on_channel is None:
                raise flight.FlightUnauthorizedError("this server has no channels")
            channel = Channel(reader, writer, lambda: None)
            try:
                self._on_channel(channel)
            finally:
                channel.close()

    def _serve_exchange(self, header: Any, reader: Any, writer: Any) -> None:
        if self._on_exchange is None:
            raise flight.FlightUnauthorizedError("this server answers no exchanges")
        begun = False
        for answer in self._on_exchange(header, (chunk.data for chunk in reader)):
            if not begun:
                writer.begin(answer.schema)
                begun = True
            writer.write_batch(answer)

    def do_put(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Receive the batches of one partition (called by Flight)."""
        if self._on_put is None:
            raise flight.FlightUnauthorizedError("this server accepts no rows")
        with _errors_to_peer():
            answer = self._on_put(
                unpack(descriptor.command, HEADER_BYTES), reader.schema, _until_end_mark(reader, writer)
            )
            writer.write(pack(answer, MESSAGE_BYTES))

    def close(self) -> None:
        """Stop listening; abandon calls that do not end within two seconds."""
        if self._proxy is not None:
            self._proxy.close()
        closer = threading.Thread(target=self.shutdown, daemon=True)
        closer.start()
        closer.join(_CLOSING_SECONDS)
        if self._socket is not None:
            self._socket.close()


@contextmanager
def _errors_to_peer() -> Iterator[None]:
    """Send an exception to the peer as a short text: gRPC drops a call's answer if its error exceeds 8 kB.

    Flight's own exceptions are sent without the traceback that Flight appends, several times, to all others. An
    exception that nobody raised on purpose is sent with its type, and its traceback goes to this process's log.
    """
    try:
        yield
    except flight.FlightError:
        raise
    except Exception as error:
        text = error_text(error, _ERROR_BYTES)
        if not isinstance(error, (ClusterError, OSError, pa.ArrowException)):
            text = f"{type(error).__name__}: {text}"
            frames = "".join(traceback.format_tb(error.__traceback__))
            CONSOLE.log(_log, logging.ERROR, "a call of another process failed:\n%s%s", frames, text)
        while (size := len(quote(text))) > _ERROR_BYTES:  # its form on the wire
            text = f"{text[: len(text) * _ERROR_BYTES // size - _ELLIPSIS]} ..."
        raise flight.FlightServerError(text) from error


class _PeerCheck(flight.ServerMiddlewareFactory):
    """Refuses every call that does not carry the token, or is for another node."""

    def __init__(self, token: str, identity: str) -> None:
        self._expected = bearer(token)
        self._identity = identity

    def start_call(self, _info: Any, headers: dict[str, list[str]]) -> None:
        shown = headers.get(TOKEN_HEADER, [""])[0].encode()
        if not hmac.compare_digest(shown, self._expected):
            raise flight.FlightUnauthenticatedError("the token is not that of this cluster")
        wanted = headers.get(NODE_HEADER, [""])[0]
        if self._identity and wanted != self._identity:
            raise flight.FlightUnauthorizedError(f"{self._identity} got a call for {wanted or 'a node without a name'}")


def _until_end_mark(reader: Any, writer: Any) -> Iterator[pa.RecordBatch | Mapped]:
    """Yield the batches and files of a stream; raise `ConnectionLost` if it ends without its end mark."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            raise ConnectionLost("the sender ended before the end of its partition") from None
        if chunk.data is not None:
            yield chunk.data
        elif chunk.app_metadata is not None:
            message = chunk.app_metadata.to_pybytes()
            if message == END_MARK:
                return
            piece = unpack(message, HEADER_BYTES)
            if not isinstance(piece, FileRef):
                raise ConnectionLost(f"the sender sent a {type(piece).__name__} instead of a file")
            try:
                mapped = [Mapped(open_shared(piece), piece.size)]
            except OSError:
                writer.write(NOT_OPENED)
                continue
            yield mapped.pop()  # without a reference here: the receiver may free it before the next one arrives
            writer.write(TAKEN)  # the receiver has stored it, and the sender may continue


def _detach_from_parent() -> None:
    """Detach the parent's servers in a forked child, which would wait for ever when it shuts them down at its end."""
    for server in list(_servers):
        for reference in weakref.getweakrefs(server):
            if isinstance(reference.__callback__, weakref.finalize):
                reference.__callback__.detach()  # pyarrow's own, which shuts the server down
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))  # so that its last reference does not shut it down either


os.register_at_fork(after_in_child=_detach_from_parent)
