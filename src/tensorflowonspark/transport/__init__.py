"""The connections of a cluster: Arrow Flight with a token. The only folder that opens or accepts one.

Three things travel here. A *channel* (Flight's ``DoExchange``) carries pickled messages both ways, for as long as both
ends live: its end is how either side learns that the other is gone. A *stream* (``DoPut``) carries the Arrow batches
of one partition to a node and is answered when all of it has been taken; one that ends without its end mark was
broken off and does not count. On one host the batches need not travel: files that hold them are handed over instead
(`handover`). A *dialogue* (``DoExchange`` with a header) sends batches and gets one back for each.

Nothing is read from a peer before it has shown the cluster's token, so that unpickling is safe. On a Unix socket that
is checked by the server, whose directory keeps other users out; on a TCP port by a gate before the server, or the
port speaks TLS and both sides show the cluster's certificate.
"""

from tensorflowonspark.transport.channel import Channel, Packed
from tensorflowonspark.transport.connection import Connection, Dialogue, PutStream, connect, connect_local
from tensorflowonspark.transport.credentials import Credentials, new_credentials, spark_wants_tls
from tensorflowonspark.transport.server import ChannelHandler, Mapped, Server, reachable
from tensorflowonspark.transport.wire import MESSAGE_BYTES, ConnectionLost

__all__ = [
    "MESSAGE_BYTES",
    "Channel",
    "ChannelHandler",
    "Connection",
    "ConnectionLost",
    "Credentials",
    "Dialogue",
    "Mapped",
    "Packed",
    "PutStream",
    "Server",
    "connect",
    "connect_local",
    "new_credentials",
    "reachable",
    "spark_wants_tls",
]
