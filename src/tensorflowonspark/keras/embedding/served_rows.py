"""The rows of a growing table in a model for serving: variables alone, which any program that loads it finds ids in."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.embedding.growing_table import GrowingTable
from tensorflowonspark.keras.embedding.row_exchange import BLOCKS, COUNTS, IDS, RowExchange


def gathered(table: GrowingTable, exchange: RowExchange | None, column: str) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield the first row of each block, and what all workers' ids have in a column; all take part."""
    values, live = table.map.columns[column], table.map.live()
    counts = [len(live)]
    if exchange is not None:
        counts = exchange.gather_block(tf.constant([[len(live)]], tf.int64), COUNTS).numpy().ravel().tolist()
    if not any(counts):
        raise SpecError(f"ShardedEmbedding {table.name!r} has no rows yet: train it before you export it")
    size = max(1, table.block_rows // table.workers)
    for first in range(0, max(counts), size):
        own = values[live[first : first + size]]
        block = np.zeros((size, *values.shape[1:]), values.dtype)  # of one shape, also where there are fewer ids
        block[: len(own)] = own
        kind = IDS if column == "ids" else BLOCKS
        every = block[None] if exchange is None else exchange.gather_block(tf.constant(block), kind).numpy()
        rows = np.concatenate([each[: max(0, count - first)] for each, count in zip(every, counts, strict=True)])
        yield sum(min(first, count) for count in counts), rows


class ServedMap:
    """Where the rows of ids are, in the order in which `gathered` yields them.

    Variables: the ids in ascending order, and for each its second number and its row.
    """

    def __init__(self, ids: npt.NDArray[np.int64], initial: Callable[[tf.Tensor], tf.Tensor]) -> None:
        order = np.argsort(ids[:, 0])
        self.size, self._initial = len(ids), initial
        self.ids = tf.Variable(ids[order, 0], trainable=False, name="ids")
        self.places = tf.Variable(np.stack([ids[order, 1], order], axis=1), trainable=False, name="places")

    def read(self, rows: tf.Variable, keys: tf.Tensor) -> tf.Tensor:
        """Return the rows of ids, as the workers would exchange them; unknown ones have their initial rows."""
        pairs = keys if keys.shape.rank != 1 else tf.stack([keys, tf.zeros_like(keys)], axis=1)
        position = tf.minimum(tf.searchsorted(self.ids, pairs[:, 0], out_type=tf.int64), self.size - 1)
        found = tf.gather(self.places, position)
        is_known = tf.logical_and(tf.gather(self.ids, position) == pairs[:, 0], found[:, 0] == pairs[:, 1])
        return tf.where(is_known[:, None], tf.gather(rows, found[:, 1]), self._initial(pairs[:, 0]))


def ids_of(saved_ids: Any, saved_places: Any) -> npt.NDArray[np.int64]:
    """Return the ids in the order of their rows, from the variables of a `ServedMap`."""
    ids = np.empty((len(saved_ids), 2), np.int64)
    places = np.asarray(saved_places)
    ids[places[:, 1]] = np.stack([np.asarray(saved_ids), places[:, 0]], axis=1)
    return ids
