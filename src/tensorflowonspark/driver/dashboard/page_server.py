"""An HTTP server in the driver that answers GET for those who show its token, and nobody else.

The token is in the URL or in the header Authorization. There are no cookies, so a page of another site can't act for
the user, whatever name it reaches this server by: the header Host need not be checked, and tunnels work.
"""

import errno
import gzip
import hmac
import io
import logging
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tensorflowonspark.errors import StartError
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport import Credentials

_log = logging.getLogger(__name__)
_CONNECTIONS = 64  # at the same time; of strangers the oldest is closed for another
_REQUEST_SECONDS = 10.0  # for a whole request to arrive, and for a message to be taken
_REQUEST_BYTES = 32 << 10  # of a request: a browser may send the cookies of other servers on the driver's host
_UNANSWERED_SECONDS = 30  # after which a peer that does not confirm what it was sent is gone
_FLUSH_SECONDS = 2.0  # for open pages to receive the end
_POLL_SECONDS = 0.01
_COMPRESSED_BYTES = 1000  # from which on
_COMPRESSION = 6  # zlib's usual level
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Connection": "close",
}
_NO_SOURCES = "default-src 'none'; frame-ancestors 'none'"
_REFUSAL = """This page is only for those who have its token: open the whole URL, with ?token=..., as
cluster.dashboard_url, cluster.metrics_url or the driver's line "dashboard: ..." shows it. Each cluster has a token of
its own, unless TFOS_DASHBOARD_TOKEN sets it in the driver's environment. Programs may send it as the header
"Authorization: Bearer ..." instead.
"""
_servers: "weakref.WeakSet[PageServer]" = weakref.WeakSet()


@dataclass(frozen=True)
class Request:
    """A request that has shown the token: the values of its query, the header Accept, and the ETag that it knows."""

    query: Mapping[str, str]
    accept: str = ""
    etag: str = ""


@dataclass(frozen=True)
class Response:
    """What a route returns."""

    body: str | bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Request], Response]


class PageServer(ThreadingHTTPServer):
    """Listens from its start on, until `close`; a forked child of the driver does not.

    A request must show the token. A port that is taken raises `StartError`, which names the setting; 0 takes any free
    one. Credentials with a certificate make it HTTPS.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = _CONNECTIONS

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        routes: Mapping[str, Route],
        *,
        setting: str,
        credentials: Credentials | None = None,
    ) -> None:
        self.token = token.encode()
        self.routes = routes
        self.has_tls = credentials is not None and bool(credentials.certificate)
        self._connections: dict[socket.socket, bool] = {}  # the oldest first, and whether it has shown the token
        self._lock = threading.RLock()
        self._owner = os.getpid()
        try:
            self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            super().__init__((host, port), _Handler)
        except OSError as error:
            any_port = "True" if setting == "dashboard" else "0"
            remedy = (
                f"pass another port, or {any_port} for any free one"
                if error.errno in (errno.EADDRINUSE, errno.EACCES)
                else "set TFOS_SERVER_HOST to an address of this machine"
            )
            text = f"{setting}={port}: the driver can't listen at port {port} of {host} ({error.strerror}): {remedy}"
            raise StartError(text) from error
        if self.has_tls:
            assert credentials is not None
            self.socket = _tls(credentials).wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.port = int(self.server_address[1])
        _servers.add(self)
        threading.Thread(target=self.serve_forever, daemon=True, name=f"{setting} server").start()

    def server_bind(self) -> None:
        """Bind, without looking up the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; of too many connections close the oldest that has not shown the token, or this one."""
        with self._lock:
            if len(self._connections) >= _CONNECTIONS:
                oldest = next((each for each, known in self._connections.items() if not known), request)
                _break(oldest)
                self._connections.pop(oldest, None)
                if oldest is request:
                    self.shutdown_request(request)
                    return
            self._connections[request] = False
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        with self._lock:
            self._connections.pop(request, None)

    def accepts(self, connection: Any, token: str) -> bool:
        """Return whether a token is right; a connection that has shown it stays when there are too many."""
        if not hmac.compare_digest(token.encode(errors="replace"), self.token):
            return False
        with self._lock:
            if connection in self._connections:
                self._connections[connection] = True
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library's signature
        """Ignore connections that break; log what else fails."""
        _log.debug("a request of %s failed", client_address, exc_info=True)

    def close(self) -> None:
        """Stop listening; close the connections, once open pages have had some time to receive the end."""
        if os.getpid() != self._owner:
            return
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # so that the thread that accepts notices at once
        self.shutdown()
        self.server_close()
        end = time.monotonic() + _FLUSH_SECONDS
        while any(self._connections.copy().values()) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        with self._lock:
            for each in self._connections:
                _break(each)

    def _leave_to_parent(self) -> None:
        """Close what a forked child has of its parent's sockets: it would keep the port, and answer nobody."""
        for each in [self.socket, *self._connections]:
            with suppress(OSError):
                socket.close(each.detach())  # a shutdown would end the parent's connection
        self._connections = {}


def _break(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _tls(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    descriptor = os.memfd_create("tfos-dashboard")  # OpenSSL reads files only, and the key belongs on no disk
    try:
        os.write(descriptor, f"{credentials.certificate}\n{credentials.key}".encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


class _Head(io.RawIOBase):
    """What arrives of one request, from anybody: so much, in so much time, however it is divided."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end = time.monotonic() + _REQUEST_SECONDS
        self._left = _REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._end - time.monotonic()
        if seconds <= 0 or not self._left:  # in both cases http.server closes the connection
            raise TimeoutError(f"a request is longer than {_REQUEST_BYTES} bytes or {_REQUEST_SECONDS} s")
        before = self._connection.gettimeout()
        self._connection.settimeout(seconds)
        try:
            count = self._connection.recv_into(buffer, min(len(buffer), self._left))
        finally:
            self._connection.settimeout(before)
        self._left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    """Answers one request of a connection."""

    server: PageServer
    timeout = _REQUEST_SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tensorflowonspark", ""

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNANSWERED_SECONDS)
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Head(self.connection))

    def do_GET(self) -> None:
        self.close_connection = True
        parts = urlsplit(self.path)
        try:
            query = {name: values[0] for name, values in parse_qs(parts.query, max_num_fields=10).items()}
        except ValueError:
            query = {}
        scheme, _, bearer = self.headers.get("Authorization", "").partition(" ")
        token = bearer.strip() if scheme.lower() == "bearer" else query.get("token", "")
        if not self.server.accepts(self.request, token):
            self._reply(Response(_REFUSAL, status=HTTPStatus.FORBIDDEN))
            return
        route = self.server.routes.get(parts.path)
        if route is None:
            there = ", ".join(sorted(self.server.routes))
            self._reply(Response(f"There is no such page here, only {there}\n", status=HTTPStatus.NOT_FOUND))
            return
        try:
            response = route(Request(query, self.headers.get("Accept", ""), self.headers.get("If-None-Match", "")))
        except Exception as error:
            text = f"The driver could not answer: {type(error).__name__}: {error}\n"
            CONSOLE.log(_log, logging.WARNING, "the dashboard could not answer %s: %s", parts.path, text)
            response = Response(text, status=HTTPStatus.INTERNAL_SERVER_ERROR)
        self._reply(response)

    def _reply(self, response: Response) -> None:
        body = response.body.encode() if isinstance(response.body, str) else response.body
        headers = {**_HEADERS, "Content-Security-Policy": _NO_SOURCES, **response.headers}
        if len(body) >= _COMPRESSED_BYTES and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, _COMPRESSION)
            headers["Content-Encoding"] = "gzip"
        if response.status != HTTPStatus.NOT_MODIFIED:  # which has no body
            headers |= {"Content-Type": response.content_type, "Content-Length": str(len(body))}
        self.send_response(response.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no valid GET, as plain text."""
        self.close_connection = True
        if code == HTTPStatus.NOT_IMPLEMENTED:  # http.server's answer to other methods
            code = HTTPStatus.METHOD_NOT_ALLOWED
        if not hasattr(self, "headers"):
            self.headers = self.MessageClass()
        status = HTTPStatus(code)
        self._reply(Response(f"{status.phrase}: {explain or message or 'this server answers GET'}\n", status=status))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log no requests: they have the token."""


def _leave_all_to_parent() -> None:
    for server in list(_servers):
        server._leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
