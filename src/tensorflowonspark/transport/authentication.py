"""Proofs of membership in the first bytes of a connection: the cluster's token, or a completed TLS handshake."""

import hmac
import ssl
from typing import Protocol

from tensorflowonspark.transport.wire import bearer

__all__ = ["Authentication", "TlsAuthentication", "TokenAuthentication"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the first bytes of every gRPC client, RFC 9113, section 3.4
_RECORD_HEADER, _ENCRYPTED = 5, 23  # of TLS: the length of a record's header, and the kind of all encrypted records
# Bytes that a server sends to every peer around its certificate: 315, and at most 20 more with longer hashes; an alert
# has 24. Before it answers the first call it has sent a member 150 more, and usually a kilobyte of tickets.
_FLIGHT_BYTES = 400


class Authentication(Protocol):
    """The proof of membership in the first bytes of one connection."""

    prefix: bytes  # the first bytes of every member's connection
    by_server: bool  # the server's bytes are the proof: a peer that has sent enough waits for them

    def on_peer_bytes(self, data: bytes) -> bool:
        """Process bytes of the peer; return whether they complete the proof."""
        ...

    def on_server_bytes(self, data: bytes) -> bool:
        """Process bytes of the server; return whether they complete the proof."""
        ...


class TokenAuthentication:
    """The token, in the headers of a connection's first call, which gRPC sends uncompressed.

    Parameters
    ----------
    token : str
        The token.
    """

    prefix = _PREFACE
    by_server = False

    def __init__(self, token: str) -> None:
        self._expected = bearer(token)
        self._sent = b""

    def on_peer_bytes(self, data: bytes) -> bool:
        """Search all bytes of the peer for the token."""
        self._sent += data
        start = self._sent.find(b"Bearer ")
        while start >= 0:
            if hmac.compare_digest(self._sent[start : start + len(self._expected)], self._expected):
                return True
            start = self._sent.find(b"Bearer ", start + 1)
        return False

    def on_server_bytes(self, _data: bytes) -> bool:
        """Ignore them: a server answers every peer."""
        return False


class TlsAuthentication:
    """A TLS handshake in which the peer has presented the cluster's certificate.

    The last messages of the handshake are encrypted, but their sizes are visible: a peer that has not presented the
    certificate gets the server's own one, with some hundred bytes around it, and then at most an alert. More than that
    (session tickets, HTTP/2 settings, answers) follows only after the server has verified the peer's certificate.
    (Before TLS 1.3 no record is of the counted kind before that moment.)

    Parameters
    ----------
    certificate : str
        The server's, PEM.

    References
    ----------
    RFC 8446, sections 2 and 5.1
    """

    prefix = b"\x16\x03"  # the record of a handshake
    by_server = True

    def __init__(self, certificate: str) -> None:
        self._remaining = len(ssl.PEM_cert_to_DER_cert(certificate)) + _FLIGHT_BYTES
        self._record = b""

    def on_peer_bytes(self, _data: bytes) -> bool:
        """Ignore them: an unauthenticated peer may send anything."""
        return False

    def on_server_bytes(self, data: bytes) -> bool:
        """Count the bytes of encrypted records."""
        self._record += data
        while len(self._record) >= _RECORD_HEADER:
            kind, size = self._record[0], int.from_bytes(self._record[3:5], "big")
            if len(self._record) < _RECORD_HEADER + size:
                break
            self._record = self._record[_RECORD_HEADER + size :]
            self._remaining -= size if kind == _ENCRYPTED else 0
        return self._remaining < 0
