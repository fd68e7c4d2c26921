"""Proofs of membership at the beginning of a connection, before a message of the other side is read.

Each side shows that it knows the cluster's token, without sending it: it authenticates both sides' nonces with the
token as the key (HMAC, RFC 2104). The server proves first, so whoever took the port of a node that ended learns
nothing. The proofs hold for one node alone, so another node can't be made to answer in its place.

========  ===========  =========================================
 step      from         bytes
========  ===========  =========================================
 1         client       protocol, nonce, identity of the node that is wanted
 2         server       protocol, nonce, whether it is that node, HMAC of all of these
 3         client       another HMAC of the same
========  ===========  =========================================
"""

import hmac
import secrets

from tensorflowonspark.transport.framed_socket import Frame, FramedSocket
from tensorflowonspark.transport.pickled import ConnectionLost

_PROTOCOL = b"TFOS-3.1"  # of the frames too: another number where they change
_NONCE_BYTES = _PROOF_BYTES = 32
_IDENTITY_BYTES = 512  # at most, of a node's identity
# Of silence. An answer takes milliseconds, unless native code holds Python's lock in the server.
_ANSWER_SECONDS, _PROOF_SECONDS = 120.0, 10.0
_YES, _NO = b"\1", b"\0"


def prove_to_server(sock: FramedSocket, token: str, identity: str, address: str) -> None:
    """Let a server prove that it is a member, and then prove the same to it.

    The identity is of the node that the connection is for; the address is where it leads, for errors. If the server
    does not prove that it knows the token, or does not answer, it raises `ConnectionLost`.
    """
    nonce, wanted = secrets.token_bytes(_NONCE_BYTES), identity.encode()
    with sock.handshake(_ANSWER_SECONDS):
        sock.send_bytes(b"".join((_PROTOCOL, nonce, len(wanted).to_bytes(2, "big"), wanted)))
        _require_protocol(sock, f"what listens at {address}")
        seen = nonce + sock.read(_NONCE_BYTES) + wanted
        matches = sock.read(1)
        if not hmac.compare_digest(sock.read(_PROOF_BYTES), _proof(token, b"server" + matches, seen)):
            raise ConnectionLost(
                f"what listens at {address} has not proved that it belongs to this cluster: another process may have "
                "the port of one that has ended, or its token is not that of this cluster"
            )
        sock.send_bytes(_proof(token, b"client" + matches, seen))
    if matches != _YES:
        raise ConnectionLost(sock.refusal() or f"what listens at {address} is not {identity or 'the driver'}")


def prove_to_client(sock: FramedSocket, token: str, identity: str) -> None:
    """Prove to a client that this process is a member, and let it prove the same.

    The identity is of this process's node. If the client is silent for some seconds, does not prove that it knows the
    token, or wants another node, it raises `ConnectionLost`.
    """
    with sock.handshake(_PROOF_SECONDS):
        _require_protocol(sock, "a client")
        theirs = sock.read(_NONCE_BYTES)
        wanted = sock.read(min(int.from_bytes(sock.read(2), "big"), _IDENTITY_BYTES))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        seen = theirs + nonce + wanted
        matches = _YES if wanted == identity.encode() else _NO
        sock.send_bytes(b"".join((_PROTOCOL, nonce, matches, _proof(token, b"server" + matches, seen))))
        if not hmac.compare_digest(sock.read(_PROOF_BYTES), _proof(token, b"client" + matches, seen)):
            raise ConnectionLost("a client has not proved that it knows the token")
    if matches != _YES:
        text = f"{identity or 'the driver'} got a call for {wanted.decode(errors='replace') or 'the driver'}"
        sock.send(Frame.ERROR, text.encode())
        raise ConnectionLost("a client is looking for another node")


def _require_protocol(sock: FramedSocket, who: str) -> None:
    if sock.read(len(_PROTOCOL)) != _PROTOCOL:
        raise ConnectionLost(f"{who} speaks another protocol: both must run the same version of tensorflowonspark")


def _proof(token: str, label: bytes, seen: bytes) -> bytes:
    return hmac.digest(token.encode(), label + b"\0" + seen, "sha256")
