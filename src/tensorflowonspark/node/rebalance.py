"""Rows go from nodes that have more than their share to those that have less, before training starts.

Otherwise each epoch would have as many steps as the fullest worker needs, and the others would fill up with rows that
count for nothing. Who gives how much to whom is the driver's plan (`driver/balance.py`); the rows go from node to
node, and a giver's last rows are those that go. It gives as soon as it learns the plan, whatever its program does.
"""

from tensorflowonspark import transport
from tensorflowonspark.node.cache import Cache
from tensorflowonspark.node.shard import Shard
from tensorflowonspark.parts import Contents, Move, PartHeader, Split
from tensorflowonspark.transport import Credentials

__all__ = ["give", "own_rows"]


def give(cache: Cache, feed: int, split: Split, contents: Contents, number: int, credentials: Credentials) -> None:
    """Send the rows that this node is to give.

    Raises
    ------
    ConnectionLost
        If a taker is gone.
    """
    start = contents.rows[number]
    for move in contents.moves:
        if move.giver == number:
            shard = cache.shard(feed, split, contents.parts)
            _send(shard, start, move, PartHeader(feed, split, _moved(number), 0, move.storage), credentials)
            start += move.rows


def own_rows(cache: Cache, feed: int, split: Split, contents: Contents, number: int) -> Shard:
    """Return this node's rows after all moves; waits for those that it is given."""
    parts = list(contents.parts)
    for move in contents.moves:
        if move.taker == number:
            cache.wait_for_part(feed, split, _moved(move.giver))
            parts.append((_moved(move.giver), 0))
    shard = cache.shard(feed, split, parts)
    gives = any(move.giver == number for move in contents.moves)
    return Shard([list(shard.slices(0, contents.rows[number]))]) if gives else shard


def _moved(giver: int) -> int:
    """Return the number of the part that a node gives: below those of all partitions."""
    return -1 - giver


def _send(shard: Shard, start: int, move: Move, header: PartHeader, credentials: Credentials) -> None:
    batches = list(shard.slices(start, start + move.rows))
    connection = transport.dial_near(move.feed_socket, move.host, move.feed_port, credentials)
    try:
        stream = connection.put(header, batches[0].schema)
        for batch in batches:
            stream.write(batch)
        stream.finish()
    finally:
        connection.close()
