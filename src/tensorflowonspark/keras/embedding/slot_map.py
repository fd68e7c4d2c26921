"""A map from ids to slots of arrays that grow in blocks, with a bound: ids that were not used of late make room.

An id is a row of two int64: the id itself and 0, or two hashes of a string, of which the second tells strings apart
that share the first. TensorFlow's hash table finds the slots of many ids at once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tensorflowonspark.errors import FeedError

Ids = npt.NDArray[np.int64]
_SHARE = 16  # of the slots: so many are emptied at once, since it takes a look at all of them
EVICT = ("lru", "frequency")


class SlotMap:
    """The slots of one worker's ids.

    `columns` has the number of float32 of each further array. `most` bounds the slots, and `evict` is what goes then:
    ``"lru"`` or ``"frequency"``, or ``None`` if nothing may, which is an error with `name`.
    """

    def __init__(
        self, columns: dict[str, int], most: int | None, evict: str | None, block_rows: int, name: str
    ) -> None:
        self.most, self.evict, self.block_rows, self.name = most, evict, block_rows, name
        self.columns: dict[str, npt.NDArray[Any]] = {
            "ids": np.empty((0, 2), np.int64),
            "used": np.empty(0, np.int64),  # the last step with the id; -1 in an empty slot
            "counts": np.empty(0, np.int64),  # steps with the id
            **{column: np.empty((0, width), np.float32) for column, width in columns.items()},
        }
        self._slots = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
        self._empty: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def find(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Return the slot of each id, -1 for those that have none."""
        slots: npt.NDArray[np.int64] = self._slots.lookup(tf.constant(ids[:, 0])).numpy()
        known = slots >= 0
        check_hashes(ids[known], self.columns["ids"][slots[known], 1], self.name)
        return slots

    def touch(self, slots: npt.NDArray[np.int64], step: int) -> None:
        """Note that a step has the ids of some slots."""
        self.columns["used"][slots] = step
        self.columns["counts"][slots] += 1

    def add(self, ids: Ids, step: int, columns: Mapping[str, Any]) -> npt.NDArray[np.int64]:
        """Return slots for new ids, with what is in their columns; those of this step stay.

        Without room for all it is a `FeedError`.
        """
        if (missing := len(ids) - len(self._empty)) > 0:
            self._make_room(missing, step)
        slots, self._empty = self._empty[: len(ids)], self._empty[len(ids) :]
        self._slots.insert(tf.constant(ids[:, 0]), tf.constant(slots))
        for name, values in {"ids": ids, "used": step, "counts": 1, **columns}.items():
            self.columns[name][slots] = values
        return slots

    def drop(self, slots: npt.NDArray[np.int64]) -> None:
        """Empty some slots."""
        self._slots.remove(tf.constant(self.columns["ids"][slots, 0]))
        self.columns["used"][slots] = -1
        self._empty = np.concatenate([self._empty, slots])

    def live(self) -> npt.NDArray[np.int64]:
        """Return the slots that have an id, in their order."""
        return np.flatnonzero(self.columns["used"] >= 0)

    def _make_room(self, missing: int, step: int) -> None:
        size = len(self.columns["used"])
        more = -(-missing // self.block_rows) * self.block_rows
        more = more if self.most is None else min(more, self.most - size)
        for column in self.columns.values():  # the system moves pages of a large array, and copies none
            column.resize((size + more, *column.shape[1:]), refcheck=False)
        self.columns["used"][size:] = -1
        self._empty = np.concatenate([self._empty, np.arange(size, size + more)])
        if (missing := missing - more) <= 0:
            return
        used, counts = self.columns["used"], self.columns["counts"]
        old = np.flatnonzero((used >= 0) & (used < step))
        if self.evict is None or len(old) < missing:
            raise FeedError(
                f"ShardedEmbedding {self.name!r}: {missing} ids of a step have no room beside those that stay, in the "
                f"{self.most} rows of max_rows that are this worker's (evict={self.evict!r}): raise max_rows"
                + (", or take smaller batches" if self.evict else ", or set evict='lru'")
            )
        gone = min(len(old), max(missing, len(used) // _SHARE))
        worth = used[old] if self.evict == "lru" else (counts[old] << 32) + np.minimum(used[old], 2**32 - 1)
        self.drop(old[np.argpartition(worth, gone - 1)[:gone]])


def check_hashes(ids: Ids, known: npt.NDArray[np.int64], name: str) -> None:
    """Refuse strings whose first hash is that of another one, by a `FeedError`."""
    if (differ := ids[:, 1] != known).any():
        raise FeedError(
            f"ShardedEmbedding {name!r}: two different strings have the 64-bit hash {ids[differ][0, 0]}, and would "
            "share a row: number the strings, and use the numbers as ids"
        )
