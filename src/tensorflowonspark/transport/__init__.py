"""Connections between the processes of a cluster: authenticated sockets.

A *channel* carries pickled messages in both directions while both ends are alive; its end signals the loss of the other
side. A *stream* carries the Arrow batches of one partition to a node, which replies when it has stored all of them; a
stream without its end mark was interrupted and does not count. On one host the batches are passed as files
(`shared_file`). An *exchange* sends batches and receives one for each.

No message of a peer is read before it has proved that it knows the cluster's token (`handshake`), so that unpickling is
safe; the token itself is never sent. With TLS both sides also present the cluster's certificate.

Connections are addressed: a client says which node it wants, and another node refuses it. A path, a pid, a port and a
host's name may be those of several nodes, since containers have equal ones.
"""

from tensorflowonspark.transport.channel import Channel, Packed, Sealed, seal
from tensorflowonspark.transport.connection import (
    Connection,
    Exchange,
    PutStream,
    connect,
    connect_local,
    near_socket,
)
from tensorflowonspark.transport.credentials import Credentials, new_credentials, spark_wants_tls
from tensorflowonspark.transport.pickled import MESSAGE_BYTES, ConnectionLost, NoConnection
from tensorflowonspark.transport.reach import MTU_ADVICE, ONLY_SMALL, is_listening, unreached
from tensorflowonspark.transport.receiver import Listener
from tensorflowonspark.transport.server import ChannelHandler, Mapped, Server, short_path

__all__ = [
    "MESSAGE_BYTES",
    "MTU_ADVICE",
    "ONLY_SMALL",
    "Channel",
    "ChannelHandler",
    "Connection",
    "ConnectionLost",
    "Credentials",
    "Exchange",
    "Listener",
    "Mapped",
    "NoConnection",
    "Packed",
    "PutStream",
    "Sealed",
    "Server",
    "connect",
    "connect_local",
    "is_listening",
    "near_socket",
    "new_credentials",
    "seal",
    "short_path",
    "spark_wants_tls",
    "unreached",
]
