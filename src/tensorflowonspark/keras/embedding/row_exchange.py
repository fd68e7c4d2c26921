"""All-to-all exchange of ids and rows between the workers of a ``MultiWorkerMirroredStrategy``.

TensorFlow pins the shape of a collective to its instance key. The key is a tensor, so a key per size allows sizes that
change from step to step: the workers agree on the size of the largest piece, which all round up to one of `_SIZES`.

A worker's rank is its position in TensorFlow's group, which the first collective finds out.
"""

import random
from dataclasses import dataclass
from itertools import count
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.workers import has_several_workers

_GROUP = 1_970_000_001  # TensorFlow counts its own groups from 1
_FIRST_KEY = 1_000_000  # of the layers; the keys below it are those of `join`
_SITES = 64  # calls of one layer in a step
_KINDS = 9
_SIZES = sorted({(4 + quarter) * 2**power // 4 for power in range(27) for quarter in range(4)})  # 1, 2, 3, ... 7·2²⁴
_KEYS = 128  # of one kind; above the number of sizes
_LARGEST, _IDS, _ROWS, _GRADIENTS, _FLAGS, BLOCKS, _STEPS, IDS, COUNTS = range(_KINDS)

_joined = count()  # layers that this process has built


@dataclass(frozen=True)
class Requests:
    """The rows that this worker requests in one call, and those that are requested of it."""

    slots: tf.Tensor  # place of each unique id in the buffer that is sent; int32, shape (ids,)
    # ids that workers request of this one, -1 where a piece is shorter; int64, shape (workers, size, ...)
    received: tf.Tensor
    size: tf.Tensor  # index of the agreed size in `_SIZES`; int32 scalar
    site: int  # number of the call in the step


@dataclass
class RowExchange:
    """The exchange of one layer."""

    workers: int
    rank: int  # this worker's number
    number: int  # the layer's, the same on all workers
    timeout: float  # seconds after which a collective fails, or 0 for never: the strategy's

    def request(self, unique: tf.Tensor, owners: tf.Tensor, site: int) -> Requests:
        """Send unique ids to their owners, and receive those of this worker's rows.

        They are int64 of shape ``(ids,)``, or ``(ids, 2)`` if an id has two numbers.
        """
        owners = tf.cast(owners, tf.int32)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(owners), owners, self.workers)
        largest = self._reduce(tf.reduce_max(counts)[None], self._key(_LARGEST, site), "Max")[0]
        size_index = tf.reduce_sum(tf.cast(tf.constant(_SIZES, tf.int32) < largest, tf.int32))
        size = tf.gather(tf.constant(_SIZES, tf.int32), size_index)
        order = tf.argsort(owners, stable=True)
        of_order = tf.gather(owners, order)
        places = tf.range(tf.size(order)) - tf.gather(tf.cumsum(counts, exclusive=True), of_order) + of_order * size
        slots = tf.scatter_nd(order[:, None], places, tf.shape(order))
        numbers = unique.shape[1:]
        buffer = tf.fill([self.workers * size, *numbers], tf.constant(-1, tf.int64))
        buffer = tf.tensor_scatter_nd_update(buffer, slots[:, None], unique)
        pieces = tf.reshape(buffer, [self.workers, size, *numbers])
        return Requests(slots, self._all_to_all(pieces, self._key(_IDS, site) + size_index), size_index, site)

    def answer(self, requests: Requests, rows: tf.Tensor) -> tf.Tensor:
        """Send the requested rows, shape ``(workers * size, dim)``; return those of this worker's unique ids."""
        answers = self._swap(requests, rows, _ROWS)
        return tf.gather(answers, requests.slots)

    def send_gradients(self, requests: Requests, gradients: tf.Tensor) -> tf.Tensor:
        """Send the gradients of unique ids to the owners; return those of `requests.received`, one for each."""
        size = tf.reduce_prod(tf.shape(requests.received)[:2])
        buffer = tf.scatter_nd(requests.slots[:, None], gradients, [size, gradients.shape[1]])
        return self._swap(requests, buffer, _GRADIENTS)

    def any_of(self, flag: tf.Tensor, site: int) -> tf.Tensor:
        """Return whether a flag is set on any worker."""
        return self._reduce(tf.cast(flag, tf.int32)[None], self._key(_FLAGS, site), "Max")[0] > 0

    def most_steps(self, steps: int) -> int:
        """Return the largest number that a worker gives, outside of any step."""
        with cpu():
            return int(self._reduce(tf.constant([steps], tf.int32), self._key(_STEPS, 0), "Max")[0])

    def gather_block(self, rows: tf.Tensor, kind: int = BLOCKS) -> tf.Tensor:
        """Return the rows of all workers, shape ``(workers, rows, dim)``, outside of any step.

        All blocks of one kind of a layer have one shape: `IDS` and `COUNTS` are other kinds.
        """
        with cpu():
            gathered = _gather(rows, self.workers, self._key(kind, 0), self.timeout)
        return tf.reshape(gathered, [self.workers, *rows.shape])

    def _swap(self, requests: Requests, rows: tf.Tensor, kind: int) -> tf.Tensor:
        flat = tf.shape(rows)
        pieces = tf.reshape(rows, [self.workers, -1, rows.shape[1]])
        return tf.reshape(self._all_to_all(pieces, self._key(kind, requests.site) + requests.size), flat)

    def _key(self, kind: int, site: int) -> int:
        if site >= _SITES:
            raise SpecError(f"a ShardedEmbedding is called more than {_SITES} times in one step: call it once")
        return _FIRST_KEY + ((self.number * _SITES + site) * _KINDS + kind) * _KEYS

    def _all_to_all(self, pieces: tf.Tensor, key: Any) -> tf.Tensor:
        return tf.raw_ops.CollectiveAllToAllV2(input=pieces, instance_key=key, **_group(self.workers, self.timeout))

    def _reduce(self, value: tf.Tensor, key: int, merge: str) -> tf.Tensor:
        return tf.raw_ops.CollectiveReduceV2(
            input=value, instance_key=key, merge_op=merge, final_op="Id", **_group(self.workers, self.timeout)
        )


def join(strategy: tf.distribute.Strategy, name: str) -> RowExchange | None:
    """Return the exchange of a new layer, or None if this process trains alone; all workers call it.

    With several replicas on a worker, or parameter servers, it is a `SpecError` with the layer's name.
    """
    if not tf.distribute.has_strategy():
        return None
    extended = strategy.extended
    devices = len(extended.worker_devices)
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise SpecError(
            f"ShardedEmbedding {name!r} does not work under ParameterServerStrategy, which divides tables itself: give "
            "the strategy a variable_partitioner and use a plain Embedding, or use MultiWorkerMirroredStrategy"
        )
    if devices > 1:
        raise SpecError(
            f"ShardedEmbedding {name!r} takes one replica per worker, and {type(strategy).__name__} has {devices} on "
            "this one: start a worker for each GPU (tfos.Cluster(..., gpus_per_node=1)), or use a plain Embedding"
        )
    if not has_several_workers(strategy):
        return None
    workers = int(strategy.num_replicas_in_sync)
    timeout = float(getattr(getattr(strategy, "_tfos_options", None), "timeout_seconds", None) or 0)
    with tf.init_scope(), cpu():
        own = [random.SystemRandom().getrandbits(62), next(_joined)]
        gathered = _gather(tf.constant([own], tf.int64), workers, own[1] % _FIRST_KEY, timeout).numpy().tolist()
    return RowExchange(
        workers, [each[0] for each in gathered].index(own[0]), max(each[1] for each in gathered), timeout
    )


def _gather(value: tf.Tensor, workers: int, key: int, timeout: float) -> tf.Tensor:
    return tf.raw_ops.CollectiveGatherV2(input=value, instance_key=key, **_group(workers, timeout))


def _group(workers: int, timeout: float) -> dict[str, Any]:
    """Return the arguments that all collectives have."""
    return {"group_size": workers, "group_key": _GROUP, "ordering_token": [], "timeout_seconds": timeout}


def cpu() -> Any:
    """Place the operations of a block on this process's CPU, where the rows and their exchange are."""
    return tf.device("/device:CPU:0")
