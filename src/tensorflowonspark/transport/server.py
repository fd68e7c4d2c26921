"""Servers, which read nothing from a peer before it has shown the token; Unix sockets."""

import ctypes
import hmac
import os
import sys
import tempfile
import threading
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

from tensorflowonspark.errors import error_text
from tensorflowonspark.transport.auth_proxy import AuthProxy, HandshakeDone, TokenShown
from tensorflowonspark.transport.channel import Channel
from tensorflowonspark.transport.credentials import Credentials
from tensorflowonspark.transport.shared_file import FileRef, open_shared
from tensorflowonspark.transport.wire import (
    END_MARK,
    HEADER_BYTES,
    MESSAGE_BYTES,
    NOT_REACHED,
    TAKEN,
    TOKEN_HEADER,
    ConnectionLost,
    bearer,
    location,
    packed,
    unpacked,
)

__all__ = ["ChannelHandler", "DialogueHandler", "HiddenSocket", "Mapped", "PutHandler", "Server", "reachable"]

_PATH_BYTES = 107  # sockaddr_un.sun_path without its terminating zero, man 7 unix


def reachable(socket: Path) -> str:
    """Return a path for a socket that is short enough for one.

    The kernel takes 107 bytes, and Spark's local directories are deeper. On Linux a directory that this process has
    open is reached through ``/proc``, by this user alone, for as long as this process lives.
    """
    if len(os.fsencode(socket)) <= _PATH_BYTES or sys.platform != "linux":
        return str(socket)
    descriptor = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/{os.getpid()}/fd/{descriptor}/{socket.name}"


class HiddenSocket:
    """A socket that only this process can reach: it loses its name as soon as somebody listens on it.

    Parameters
    ----------
    directory : str
        Where it has a name until then; one that goes with this process, if there is any. By default the system's own.

    Attributes
    ----------
    path : str
        Where to listen.
    """

    def __init__(self, directory: str = "") -> None:
        self._directory = tempfile.mkdtemp(prefix="tfos-", dir=directory or None)  # which only this user can enter
        self._entry = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        self.path = f"/proc/self/fd/{self._entry}/hidden"  # a temporary directory's own path may be too long
        self._socket = -1

    def hide(self) -> str:
        """Take the name away, now that somebody listens; return the path by which this process still reaches it."""
        self._socket = os.open(self.path, os.O_PATH)
        self._remove()
        return f"/proc/self/fd/{self._socket}"

    def close(self) -> None:
        """Let go of it."""
        if self._socket < 0:
            self._remove()  # nobody has listened
        else:
            os.close(self._socket)
        os.close(self._entry)

    def _remove(self) -> None:
        Path(self.path).unlink(missing_ok=True)
        Path(self._directory).rmdir()


_CLOSING_SECONDS = 2.0
_servers: "weakref.WeakSet[Server]" = weakref.WeakSet()
_ERROR_BYTES, _ELLIPSIS = 5000, 8
_INSIDE = ("127.0.0.1", 0)  # where a server with TLS listens, behind its gate

PutHandler = Callable[[Any, pa.Schema, Iterator["pa.RecordBatch | Mapped"]], Any]
DialogueHandler = Callable[[Any, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
ChannelHandler = Callable[["Channel"], None]


@dataclass(frozen=True)
class Mapped:
    """Batches that were handed over in a file."""

    batches: list[pa.RecordBatch]
    size: int  # of the file


class Server(flight.FlightServerBase):
    """Listens on one address, a Unix socket's path or a host and port, from its making until ``close``.

    A Unix socket is protected by its directory and the token; a port by an `AuthProxy`, which lets nobody reach
    the server before it has shown the token or, with TLS, finished the handshake (both sides show the certificate).

    Parameters
    ----------
    address : str or (str, int)
        Path, or host and port; port 0 takes a free one.
    credentials : Credentials
        What a peer must show.
    directory : str
        Where files may be for a moment; one that goes with this process, if there is any.
    on_channel : callable, optional
        Called with each new channel, in a thread of its own; the channel ends when it returns.
    on_put : callable, optional
        Called with the header, schema and batches of each stream; what it returns is the answer.
    on_dialogue : callable, optional
        Called with the header and batches of each dialogue; it yields a batch for each.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        credentials: Credentials,
        *,
        directory: str = "",
        on_channel: ChannelHandler | None = None,
        on_put: PutHandler | None = None,
        on_dialogue: DialogueHandler | None = None,
    ) -> None:
        _servers.add(self)
        self._gate: AuthProxy | None = None
        self._hidden: HiddenSocket | None = None
        try:
            self._listen(address, credentials, directory)
        except BaseException:
            for each in (self._gate, self._hidden):
                if each is not None:
                    each.close()
            raise
        self._on_channel = on_channel
        self._on_put = on_put
        self._on_dialogue = on_dialogue

    def _listen(self, address: str | tuple[str, int], credentials: Credentials, directory: str) -> None:
        checks = {"token": _TokenCheck(credentials.token)}
        if isinstance(address, str):
            super().__init__(location(address), middleware=checks)
        elif credentials.certificate:
            own = credentials.certificate.encode()
            self._gate = AuthProxy(address, partial(HandshakeDone, credentials.certificate))
            # Flight has TLS on ports only: this one is reached from this host, and asks for the certificate as well.
            super().__init__(
                location(_INSIDE, tls=True),
                tls_certificates=[(own, credentials.key.encode())],
                verify_client=True,
                root_certificates=own,
                middleware=checks,
            )
            self._gate.open((_INSIDE[0], int(super().port)))
        else:
            self._gate = AuthProxy(address, partial(TokenShown, credentials.token))
            self._hidden = HiddenSocket(directory)
            super().__init__(location(self._hidden.path), middleware=checks)
            self._gate.open(self._hidden.hide())

    @property
    def port(self) -> int:
        """The TCP port."""
        return self._gate.port if self._gate is not None else int(super().port)

    def do_exchange(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serve one channel or dialogue (called by Flight)."""
        with _errors_to_peer():
            if descriptor.command:
                self._converse(unpacked(descriptor.command, HEADER_BYTES), reader, writer)
                return
            if self._on_channel is None:
                raise flight.FlightUnauthorizedError("this server has no channels")
            channel = Channel(reader, writer, lambda: None)
            try:
                self._on_channel(channel)
            finally:
                channel.close()

    def _converse(self, header: Any, reader: Any, writer: Any) -> None:
        if self._on_dialogue is None:
            raise flight.FlightUnauthorizedError("this server answers nothing")
        begun = False
        for answer in self._on_dialogue(header, (chunk.data for chunk in reader)):
            if not begun:
                writer.begin(answer.schema)
                begun = True
            writer.write_batch(answer)

    def do_put(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take one partition's batches (called by Flight)."""
        if self._on_put is None:
            raise flight.FlightUnauthorizedError("this server takes no rows")
        with _errors_to_peer():
            answer = self._on_put(
                unpacked(descriptor.command, HEADER_BYTES), reader.schema, _until_end_mark(reader, writer)
            )
            writer.write(packed(answer, MESSAGE_BYTES))

    def close(self) -> None:
        """Stop listening; calls that don't end are given up after two seconds, never waited for."""
        if self._gate is not None:
            self._gate.close()
        closer = threading.Thread(target=self.shutdown, daemon=True)
        closer.start()
        closer.join(_CLOSING_SECONDS)
        if self._hidden is not None:
            self._hidden.close()


@contextmanager
def _errors_to_peer() -> Iterator[None]:
    """Send what is raised as a text that is short enough: gRPC drops the call's answer for one of more than 8 kB.

    An exception of Flight's own goes without the traceback that Flight adds to all others, several times over.
    """
    try:
        yield
    except flight.FlightError:
        raise
    except Exception as error:
        text = error_text(error, _ERROR_BYTES)
        while (size := len(quote(text))) > _ERROR_BYTES:  # as it is sent
            text = f"{text[: len(text) * _ERROR_BYTES // size - _ELLIPSIS]} ..."
        raise flight.FlightServerError(text) from error


class _TokenCheck(flight.ServerMiddlewareFactory):
    """Refuses every call that does not carry the token."""

    def __init__(self, token: str) -> None:
        self._expected = bearer(token)

    def start_call(self, _info: Any, headers: dict[str, list[str]]) -> None:
        shown = headers.get(TOKEN_HEADER, [""])[0].encode()
        if not hmac.compare_digest(shown, self._expected):
            raise flight.FlightUnauthenticatedError("this cluster does not know you")


def _until_end_mark(reader: Any, writer: Any) -> Iterator[pa.RecordBatch | Mapped]:
    """Yield the batches of a stream, and the files that are handed over; raise if it breaks off."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            raise ConnectionLost("the sender ended before the end of its partition") from None
        if chunk.data is not None:
            yield chunk.data
        elif chunk.app_metadata is not None:
            word = chunk.app_metadata.to_pybytes()
            if word == END_MARK:
                return
            piece = unpacked(word, HEADER_BYTES)
            if not isinstance(piece, FileRef):
                raise ConnectionLost(f"the sender said {type(piece).__name__} where a file was to be handed over")
            try:
                mapped = [Mapped(open_shared(piece), piece.size)]
            except OSError:
                writer.write(NOT_REACHED)
                continue
            yield mapped.pop()  # and keep no hold of it here: it may be let go while the next is waited for
            writer.write(TAKEN)  # the receiver has put it where it belongs, and the sender may go on


def _leave_to_parent() -> None:
    """Keep a forked child from ending the servers of its parent, as it would where it ends: it waits for ever there."""
    for server in list(_servers):
        for reference in weakref.getweakrefs(server):
            if isinstance(reference.__callback__, weakref.finalize):
                reference.__callback__.detach()  # pyarrow's own, which shuts the server down
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))  # nor is it taken down with its last reference


os.register_at_fork(after_in_child=_leave_to_parent)
