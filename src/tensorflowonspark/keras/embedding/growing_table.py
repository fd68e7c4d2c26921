"""One worker's rows of a table of any ids, which get rows as they come, in NumPy arrays of this process alone.

An id belongs to the worker that a hash of it names, and reads as its initial row until it has one of its own. Rows are
made by the update of a step alone: so reading changes nothing, in training or prediction, and in a step no row goes
between its reading and its update.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.embedding.slot_map import Ids, SlotMap, check_hashes
from tensorflowonspark.keras.embedding.table import Table, mixed


@dataclass(frozen=True)
class Growth:
    """How a table grows: its largest number of rows, what goes then, and the step of an id that gives it a row."""

    max_rows: int | None = None
    evict: str | None = None
    admit: int = 1


class GrowingTable(Table):
    """The rows of the ids whose owner is this worker, of all that have come."""

    def __init__(self, growth: Growth, name: str, *of_tables: Any) -> None:
        self.growth, self.name = growth, name
        self._kind: type[Any] | None = None  # of the ids, NumPy's int64 or str; None while nothing is known
        self._lock = RLock()  # TensorFlow calls the functions below from threads of its own
        super().__init__("dynamic", *of_tables)

    def _make_rows(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all ids."""
        most = self.growth.max_rows and len(range(self.rank, self.growth.max_rows, self.workers))
        columns = dict.fromkeys(["rows", *self.optimizer.slots], self.dim)
        self.map = SlotMap(columns, most, self.growth.evict, self.block_rows, self.name)
        # Ids that have no row yet: as many as rows, so that memory is bounded. The oldest are forgotten.
        self._candidates = SlotMap({}, most, "lru", self.block_rows, self.name)
        self._maps = {"": self.map, "candidate-": self._candidates}  # with what precedes the names of their files

    def known(self, ids: Any) -> tf.Tensor:
        """Return ids as int64, or strings; other types are a `SpecError`, and both in one table."""
        if not tf.is_tensor(ids):
            ids = np.asarray(ids) if len(ids) else np.empty(0, self._kind or np.int64)
        kind = ids.dtype.name.rstrip("0123456789")
        if kind not in ("int", "uint", "string", "str", "bytes") or ids.dtype.name == "uint64":
            raise SpecError(
                f"ShardedEmbedding {self.name!r}: ids must be int64, or strings, without nulls, not {ids.dtype}"
            )
        self.take_kind(np.int64 if "int" in kind else str)
        return tf.cast(ids, tf.int64) if "int" in kind else tf.convert_to_tensor(ids)

    def take_kind(self, kind: type) -> None:
        """Have ids that are strings, or integers, for good."""
        if self._kind not in (None, kind):
            before, now = (each.__name__ for each in (self._kind, kind))
            raise SpecError(f"ShardedEmbedding {self.name!r}: the ids are {now} now, and were {before} before")
        self._kind = kind

    def keys(self, ids: tf.Tensor) -> tf.Tensor:
        """Return what the workers exchange: integers as they are, of strings two hashes in a row."""
        if ids.dtype != tf.string:
            return ids
        second = tf.strings.to_hash_bucket_strong(ids, 2**63 - 1, key=[0x7466, 0x6F73])
        return tf.stack([tf.strings.to_hash_bucket_fast(ids, 2**63 - 1), second], axis=1)

    def owners(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the worker that has each id."""
        first = ids if ids.shape.rank == 1 else ids[:, 0]
        return tf.cast(mixed(tf.bitcast(first, tf.uint64)) // np.uint64(2**33), tf.int64) % self.workers

    def read(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the rows of some ids; shape ``(ids, dim)``."""
        return tf.ensure_shape(tf.numpy_function(self._read, [ids], tf.float32), [None, self.dim])

    def _read(self, given: Ids) -> npt.NDArray[np.float32]:
        ids = _pairs(given)
        with self._lock:
            slots = self.map.find(ids)
            rows = np.empty((len(ids), self.dim), np.float32)
            rows[slots >= 0] = self.map.columns["rows"][slots[slots >= 0]]
        rows[slots < 0] = self.initial(ids[slots < 0, 0])
        return rows

    def update(self, ids: tf.Tensor, gradients: tf.Tensor) -> None:
        """Take a step, as every table; ids of two numbers are strings."""
        self.steps.assign_add(1)
        steps = self.steps.read_value()
        rate = self.optimizer.learning_rate(self.learning_rate, steps - 1)
        tf.numpy_function(self._update, [ids, gradients, rate, steps], tf.int64)

    def _update(self, given: Ids, gradients: Any, rate: Any, steps: Any) -> Any:
        ids = _pairs(given)
        unique, places = (each.numpy() for each in tf.unique(ids[:, 0]))
        first = np.empty(len(unique), np.int64)
        first[places[::-1]] = np.arange(len(ids))[::-1]
        check_hashes(ids, ids[first[places], 1], self.name)
        sums = tf.math.unsorted_segment_sum(gradients, places, len(unique)).numpy()
        counts = (sums != 0).any(axis=1)
        with self._lock:
            slots = self._slots_of(ids[first[counts]], int(steps))
            slots, sums = slots[slots >= 0], sums[counts][slots >= 0]
            columns = self.map.columns
            before = {name: columns[name][slots] for name in self.optimizer.slots}
            change, after = self.optimizer.change(sums, before, rate, steps)
            for name, values in {"rows": columns["rows"][slots] - change, **after}.items():
                columns[name][slots] = values
        return steps

    def _slots_of(self, ids: Ids, step: int) -> npt.NDArray[np.int64]:
        """Return the slots of a step's ids, -1 for those that have no row yet; those that have come often get one."""
        slots = self.map.find(ids)
        self.map.touch(slots[slots >= 0], step)
        new = np.flatnonzero(slots < 0)
        if self.growth.admit > 1:
            candidates = self._candidates
            places = candidates.find(ids[new])
            candidates.touch(places[places >= 0], step)
            candidates.add(ids[new[places < 0]], step, {})
            often = np.flatnonzero(places >= 0)
            often = often[candidates.columns["counts"][places[often]] >= self.growth.admit]
            candidates.drop(places[often])
            new = new[often]
        columns = {"rows": self.initial(ids[new, 0]), "counts": self.growth.admit, **self.optimizer.slots}
        slots[new] = self.map.add(ids[new], step, columns)
        return slots

    def about(self) -> dict[str, Any]:
        """Return what `load` needs to know of this worker: the numbers of its ids."""
        return {"sizes": {prefix: len(slots.live()) for prefix, slots in self._maps.items()}}

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the name and the contents of each part of a checkpoint."""
        for prefix, slots in self._maps.items():
            live = slots.live()
            for part, first in enumerate(range(0, len(live), self.block_rows)):
                for name, column in slots.columns.items():
                    yield f"{prefix}{name}-{part:06d}", column[live[first : first + self.block_rows]]

    def load(self, rank: int, workers: int, about: Mapping[str, Any], read: Callable[[str], Any]) -> None:  # noqa: ARG002 - a hash names the owner
        """Take this worker's rows from the arrays of one worker."""
        for prefix, slots in self._maps.items():
            for part in range(-(-about["sizes"][prefix] // about["block_rows"])):
                arrays = {
                    name: read(f"{prefix}{name}-{part:06d}").reshape(-1, *column.shape[1:])
                    for name, column in slots.columns.items()
                }
                self.take_kind(_kind_of(arrays["ids"]))
                own = self.owned(arrays["ids"])
                slots.add(arrays["ids"][own], about["steps"] + 1, {name: array[own] for name, array in arrays.items()})

    def take_saved(self, ids: Ids, rows: Any) -> None:
        """Take this worker's rows of a saved table, whose ids are in their order; the optimizer begins anew."""
        self.clear()
        self.take_kind(_kind_of(ids))
        for first in range(0, len(ids), self.block_rows):
            block = ids[first : first + self.block_rows]
            own = self.owned(block)
            columns = {"rows": rows[first : first + len(block)][own], "used": 0, **self.optimizer.slots}
            self.map.add(block[own], 1, columns)

    def owned(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return which ids are this worker's."""
        return np.asarray(self.owners(tf.constant(ids)).numpy() == self.rank)


def _kind_of(ids: Ids) -> type:
    return str if ids[:, 1].any() else np.int64


def _pairs(ids: Ids) -> Ids:
    """Return two numbers for each id."""
    return np.stack([ids, np.zeros_like(ids)], axis=1) if ids.ndim == 1 else ids
