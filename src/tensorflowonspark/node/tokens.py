"""Rows of one process read by a data set that another has built: how a ``ParameterServerStrategy`` is fed.

The coordinator builds the workers' data sets, and TensorFlow runs them in the workers. A generator would run in the
coordinator; but an operation that calls a Python function carries no more than the function's *token*, a name under
which the process that runs it knows a function. So each worker registers one function before it serves, always under
the same token, and the coordinator's graphs call it by that. Errors come back with their traceback.
"""

import json
from collections.abc import Callable, Iterator
from itertools import count
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflowonspark.columns import zeros
from tensorflowonspark.errors import FeedError
from tensorflowonspark.node.dataset import assembled, flat_arrays, flat_specs
from tensorflowonspark.node.elements import Batch, Options, Selection
from tensorflowonspark.node.feed import Feed
from tensorflowonspark.parts import Split

__all__ = ["remote_dataset", "serve_rows"]

_FUNCTION = "pyfunc_0"  # the token: TensorFlow numbers the functions of a process
_PASSES = 4  # that a worker keeps going at once; tf.data drops iterators without a word
_PREFETCH_BATCHES = 2
_kept_graph: list[tf.Graph] = []  # a function is forgotten with the graph that it was made in


def serve_rows(find: Callable[[int], Feed]) -> None:
    """Register this process's function (in a worker).

    Parameters
    ----------
    find : callable
        Returns this worker's rows of a feed, by its number.
    """
    passes = _Passes(find)
    with tf.Graph().as_default() as graph:
        made = tf.numpy_function(passes.call, [tf.constant(""), tf.constant(0, tf.int64)], [tf.int64])
    token = made.op.get_attr("token").decode()
    if token != _FUNCTION:
        raise FeedError(
            f"ctx.join_server() must come before the first tf.numpy_function, tf.py_function or "
            f"Dataset.from_generator of a worker's program (this is {token})"
        )
    _kept_graph.append(graph)


def remote_dataset(request: str, selection: Selection) -> tf.data.Dataset:
    """Return the data set of whichever worker runs it (in the coordinator)."""
    specs = list(flat_specs(selection))

    def call(number: Any, types: list[tf.DType]) -> list[tf.Tensor]:
        return tf.raw_ops.PyFunc(input=[tf.constant(request), number], token=_FUNCTION, Tout=types)  # type: ignore[no-any-return]

    def pull(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        *tensors, more = call(number, [*(spec.dtype for spec in specs), tf.bool])
        shaped = [tf.ensure_shape(each, spec.shape) for each, spec in zip(tensors, specs, strict=True)]
        return (*shaped, tf.ensure_shape(more, ()))

    def one_pass(number: tf.Tensor) -> tf.data.Dataset:
        batches = tf.data.Dataset.counter().map(lambda _: pull(number))
        return batches.take_while(lambda *tensors: tensors[-1])

    # Each iterator begins with a call that opens a pass of its own.
    opened = tf.data.Dataset.from_tensors(0).map(
        lambda _: tf.ensure_shape(call(tf.constant(-1, tf.int64), [tf.int64])[0], ())
    )
    elements = opened.flat_map(one_pass).map(lambda *tensors: assembled(selection, tensors[:-1]))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return elements.with_options(options).prefetch(_PREFETCH_BATCHES)


class _Passes:
    """Answers the calls of data sets in this worker: opens passes over its rows, and hands out their batches."""

    def __init__(self, find: Callable[[int], Feed]) -> None:
        self._find = find
        self._lock = Lock()
        self._feeds: dict[int, Feed] = {}
        self._sources: dict[str, tuple[Selection, Callable[[], Iterator[Batch]]]] = {}
        self._open: dict[int, tuple[Selection, Iterator[Batch]]] = {}
        self._numbers = count()

    def call(self, request: Any, number: Any) -> list[Any]:
        """Open a pass where the number is negative, and return its number; or return the next batch of a pass."""
        if number < 0:
            return [np.int64(self._begin(request.decode()))]
        if number not in self._open:
            raise FeedError(f"more than {_PASSES} iterators at a time over one worker's rows")
        selection, batches = self._open[number]
        batch = next(batches, None)
        if batch is None:
            nothing = {name: zeros(0, kind) for name, kind in selection.kinds.items()}
            return [*flat_arrays(selection, (nothing, np.zeros(0, bool))), np.bool_(False)]
        return [*flat_arrays(selection, batch), np.bool_(True)]

    def _begin(self, request: str) -> int:
        with self._lock:
            if request not in self._sources:
                self._sources[request] = self._source(json.loads(request))
            selection, start = self._sources[request]
            number = next(self._numbers)
            self._open[number] = selection, _repeated(start, json.loads(request)["epochs"])
            for old in sorted(self._open)[:-_PASSES]:
                del self._open[old]
        return number

    def _source(self, request: dict[str, Any]) -> tuple[Selection, Callable[[], Iterator[Batch]]]:
        feed = self._feed(request["feed"])
        if request["split"] == Split.VALIDATION.value:
            assert feed.validation is not None
            feed = feed.validation
        selection = feed.select(Options(**request["options"]))  # type: ignore[typeddict-item]
        return selection, feed.own_passes(selection, request["batch_size"], request["seed"])

    def _feed(self, number: int) -> Feed:
        if number not in self._feeds:
            self._feeds = {number: self._find(number)}
            self._sources.clear()
            self._open.clear()
        return self._feeds[number]


def _repeated(start: Callable[[], Iterator[Batch]], epochs: int | None) -> Iterator[Batch]:
    for _ in count() if epochs is None else range(epochs):
        yield from start()
