"""Datasets that the coordinator builds and the workers run, over the rows of each worker.

A generator would run in the coordinator. But an operation that calls a Python function carries only the function's
*token*, a name that is resolved in the process that runs the operation. So each worker registers one function before it
serves, always under the same token, and the coordinator's graphs call it by that token. Errors return with their
traceback.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflowonspark.columns import zeros
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import FeedId, FileFeed, PassEnded, Split
from tensorflowonspark.node.feed.dataset import assemble, flat_arrays, flat_specs
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.selection import Batch, FeatureOptions, Selection
from tensorflowonspark.node.feed.source import Source

_FUNCTION = "pyfunc_0"  # the token: TensorFlow numbers the functions of a process
_PASSES = 4  # open at once in a worker; tf.data drops iterators without notice
_PREFETCH_BATCHES = 2
_Find = Callable[[FeedId, Source | None], Feed]
_registered: list[tf.Graph] = []  # a function is registered as long as its graph exists


def serve_rows(find: _Find, send: Callable[[object], None]) -> None:
    """Register this process's function (in a worker).

    `find` returns this worker's rows of a feed, by its number and, if this worker is to read them, the files. It is a
    `FeedError` if the program registered another function before.
    """
    passes = _Passes(find, send)
    with tf.Graph().as_default() as graph:
        result = tf.numpy_function(passes.call, [""], tf.bool)
    token = result.op.get_attr("token").decode()
    if token != _FUNCTION:
        raise FeedError(
            f"ctx.join_server() must come before the first tf.numpy_function, tf.py_function or "
            f"Dataset.from_generator of a worker's program (this is {token})"
        )
    _registered.append(graph)


def remote_dataset(request: str, selection: Selection) -> tf.data.Dataset:
    """Return a dataset of the rows of the worker that runs it (in the coordinator)."""
    specs = [*flat_specs(selection), tf.TensorSpec((), tf.bool)]

    def call(name: str, argument: Any, results: list[tf.TensorSpec]) -> list[tf.Tensor]:
        tensors = tf.raw_ops.PyFunc(input=[name, argument], token=_FUNCTION, Tout=[each.dtype for each in results])
        return [tf.ensure_shape(tensor, each.shape) for tensor, each in zip(tensors, results, strict=True)]

    def pull(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Any]:
        *tensors, more = call("next", number, specs)
        return number, more, assemble(selection, tensors)

    def continues(number: tf.Tensor, more: tf.Tensor, _element: Any) -> tf.Tensor:
        return tf.cond(more, lambda: True, lambda: call("end", number, specs[-1:])[0])

    # Each iterator begins with a call that opens a separate pass.
    opened = tf.data.Dataset.from_tensors(request).map(lambda it: call("open", it, [tf.TensorSpec((), tf.int64)])[0])
    batches = opened.flat_map(lambda number: tf.data.Dataset.counter().map(lambda _: pull(number)))
    # The end is reported when a step requests a batch after the last one, not when the last one has been prefetched:
    # by then all steps with rows have been taken. So no transformation from here on may read ahead.
    dataset = batches.prefetch(_PREFETCH_BATCHES).take_while(continues).map(lambda _number, _more, element: element)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.inject_prefetch = False
    # A call may wait for rows, and must not occupy a thread that steps or the server's requests need.
    options.threading.private_threadpool_size = 0  # as many threads as cores
    return dataset.with_options(options)


@dataclass
class _Pass:
    feed: FeedId
    split: Split
    selection: Selection
    batches: Iterator[Batch]
    end_reported: bool = False


class _Passes:
    """The passes of datasets over this worker's rows: opens them, and returns their batches."""

    def __init__(self, find: _Find, send: Callable[[object], None]) -> None:
        self._find = find
        self._send = send
        self._lock = Lock()
        self._feed: tuple[FeedId, Feed] | None = None
        self._sources: dict[str, tuple[Selection, Callable[[], Iterator[Batch]]]] = {}
        self._open: dict[int, _Pass] = {}
        self._numbers = count()

    def call(self, name: bytes, argument: Any) -> list[Any]:
        """Perform the operation that a dataset requests by name: ``open``, ``next`` or ``end``."""
        if name == b"open":
            return [np.int64(self._begin(argument.decode()))]
        if argument not in self._open:
            raise FeedError(
                f"an iterator over this worker's rows is no longer valid: its feed is over, or {_PASSES} others were "
                "started after it"
            )
        current = self._open[argument]
        if name == b"end":
            if not current.end_reported:  # TensorFlow repeats the call at each step without rows
                current.end_reported = True
                self._send(PassEnded(current.feed, current.split))
            return [np.bool_(False)]
        batch = next(current.batches, None)
        if batch is not None:
            return [*flat_arrays(current.selection, batch), np.bool_(True)]
        empty = {name: zeros(0, kind) for name, kind in current.selection.kinds.items()}
        return [*flat_arrays(current.selection, (empty, np.zeros(0, bool))), np.bool_(False)]

    def _begin(self, text: str) -> int:
        request = json.loads(text)
        with self._lock:
            source = request["source"] and Source.from_json(request["source"])
            wanted = FileFeed(request["feed"]) if source else request["feed"]
            feed = self._current(wanted, source)
            if text not in self._sources:
                self._sources[text] = self._source(feed, request)
            selection, start = self._sources[text]
            number = next(self._numbers)
            batches = _repeated(start, request["epochs"])
            self._open[number] = _Pass(wanted, Split(request["split"]), selection, batches)
            for old in sorted(self._open)[:-_PASSES]:
                del self._open[old]
        return number

    def _current(self, wanted: FeedId, source: Source | None) -> Feed:
        if self._feed is None or self._feed[0] != wanted:
            self._feed = wanted, self._find(wanted, source)
            self._sources.clear()
            self._open.clear()
        return self._feed[1]

    def _source(self, feed: Feed, request: dict[str, Any]) -> tuple[Selection, Callable[[], Iterator[Batch]]]:
        if request["split"] == Split.VALIDATION.value:
            assert feed.validation is not None
            feed = feed.validation
        selection = feed._select(FeatureOptions(**request["options"]))
        return selection, feed._share.independent_passes(selection, request["batch_size"], request["seed"])


def _repeated(start: Callable[[], Iterator[Batch]], epochs: int | None) -> Iterator[Batch]:
    for _ in count() if epochs is None else range(epochs):
        empty = True
        for batch in start():
            empty = False
            yield batch
        if empty and epochs is None:
            raise FeedError(
                "this worker has no rows to repeat (epochs=None): feed at least as many partitions with rows as there "
                "are workers (df.repartition)"
            )
