"""TLS in which both sides present the cluster's certificate, for one thread that reads and others that write."""

import socket
import ssl
import tempfile
from functools import lru_cache
from pathlib import Path
from threading import Lock

from tensorflowonspark.transport.credentials import CERTIFIED_NAME, Credentials

_RECEIVED_BYTES = 256 << 10  # from the socket at once
_HANDSHAKE_BYTES = 16 << 10  # the same, of a peer that has not shown its certificate
_ENCRYPTED_BYTES = 256 << 10  # at once


class TlsSocket:
    """The encrypted form of a socket; the handshake happens with the first bytes.

    Python's own ``SSLSocket`` lets no thread write while another one waits for bytes (or, in some versions, breaks).
    Here a lock is held while bytes are encrypted and decrypted, and never while the socket is waited for.

    Both sides must present the certificate of the credentials.
    """

    def __init__(self, sock: socket.socket, credentials: Credentials, *, server: bool) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _context(credentials, server).wrap_bio(
            self._incoming, self._outgoing, server_side=server, server_hostname=None if server else CERTIFIED_NAME
        )
        self._lock = Lock()
        self._buffer = memoryview(bytearray(_RECEIVED_BYTES))

    def handshake(self) -> None:
        """Exchange certificates.

        If the other side does not present the cluster's certificate, it raises `OSError`.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._socket.sendall(self._outgoing.read())
                if not (count := self._socket.recv_into(self._buffer[:_HANDSHAKE_BYTES])):
                    raise ConnectionResetError("the other side ended the TLS handshake") from None
                self._incoming.write(self._buffer[:count])
            else:
                break
            finally:
                self._socket.sendall(self._outgoing.read())  # after a failure the alert, too

    def recv_into(self, view: memoryview, flags: int = 0) -> int:
        """Fill a part of a buffer; return how many bytes, 0 at the end. The flags are those of ``socket.recv``."""
        while True:
            with self._lock:
                try:
                    return int(self._tls.read(len(view), view))
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0
            if not (count := self._socket.recv_into(self._buffer, 0, flags)):
                return 0  # a frame that this cuts off is noticed as such
            with self._lock:
                self._incoming.write(self._buffer[:count])

    def sendall(self, data: memoryview) -> None:
        """Send all bytes. Only one thread at a time may call this."""
        for start in range(0, len(data), _ENCRYPTED_BYTES):
            with self._lock:
                self._tls.write(data[start : start + _ENCRYPTED_BYTES])
                encrypted = self._outgoing.read()
            self._socket.sendall(encrypted)


@lru_cache(maxsize=8)
def _context(credentials: Credentials, server: bool) -> ssl.SSLContext:
    """Return what is needed for connections of a cluster."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        context.num_tickets = 0  # clients do not resume, and would take tickets for answers
    context.load_verify_locations(cadata=credentials.certificate)
    with tempfile.TemporaryDirectory(prefix="tfos-") as directory:  # which only this user can enter
        pair = Path(directory, "pair.pem")
        pair.write_text(credentials.key + credentials.certificate)
        context.load_cert_chain(pair)
    return context
