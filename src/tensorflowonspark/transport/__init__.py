"""The connections of a cluster: Arrow Flight with a token. The only folder that opens or accepts one.

Three things travel here. A *channel* (Flight's ``DoExchange``) carries pickled messages both ways, for as long as both
ends live: its end is how either side learns that the other is gone. A *stream* (``DoPut``) carries the Arrow batches
of one partition to a node and is answered when all of it has been taken; one that ends without its end mark was
broken off and does not count. On one host the batches need not travel: files that hold them are handed over instead
(`handover`). A *dialogue* (``DoExchange`` with a header) sends batches and gets one back for each.

Nothing is read from a peer before it has shown the cluster's token, so that unpickling is safe.
"""

from tensorflowonspark.transport.channel import Channel, Packed
from tensorflowonspark.transport.client import Dialled, Dialogue, PutStream, dial, dial_near
from tensorflowonspark.transport.common import ConnectionLost, new_token
from tensorflowonspark.transport.server import ChannelHandler, Mapped, Server

__all__ = [
    "Channel",
    "ChannelHandler",
    "ConnectionLost",
    "Dialled",
    "Dialogue",
    "Mapped",
    "Packed",
    "PutStream",
    "Server",
    "dial",
    "dial_near",
    "new_token",
]
