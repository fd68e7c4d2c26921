"""Batches of equal size on all workers.

JAX takes the batch of each process for one part of a batch of all, and all parts for equally large. It checks neither:
with parts of different sizes, the processes compute different results, and nothing reports it. So when a pass over the
data begins, the workers compare the shapes of their first batches and their numbers of steps. Smaller batches are
padded to the size of the first with rows of weight -0.0, as feeds pad them (`padding` leaves them out). Where the end
of the data shows itself only when it is reached, the workers compare every few batches how many each has.
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.session import session
from tensorflowonspark.keras.workers import combine

ENDLESS, UNCOUNTED = "endless", "uncounted"  # numbers of batches
_BLOCK = 16  # batches of an uncounted pass, after which the workers compare how many they have
_DIFFERENT = "on JAX all workers must take the same steps, with batches of one shape"


@contextmanager
def reads_data_for(call: str, *, adds_weights: bool) -> Iterator[None]:
    """Name the method that reads data for the duration of a block, for errors.

    Parameters
    ----------
    call : str
        The method, as in ``fit``.
    adds_weights : bool
        Whether batches without sample weights get some, so that they can be padded.
    """
    before = session.call, session.adds_weights
    session.call, session.adds_weights = call, adds_weights
    try:
        yield
    finally:
        session.call, session.adds_weights = before


@dataclass(frozen=True)
class WorkerPass:
    """A worker's pass over its data, as far as it is known when the pass begins; compared with those of the others.

    Attributes
    ----------
    steps : int, str or None
        The number of batches; `ENDLESS`; `UNCOUNTED` if only the data shows where it ends; None as long as rows of a
        feed arrive, which gives all workers the same number.
    per_epoch : int, optional
        The number of steps after which the program ends an epoch.
    rows : int
        The rows that a batch needs: those of the first batch, or those of the feed's batches if these are more, since
        the program may have dropped some; 0 if there is no batch.
    shapes : tuple
        Shape and dtype of each array of the first batch, without the rows.
    contents : int
        A checksum of it, if several workers must have the same rows; else 0.
    """

    steps: int | str | None
    per_epoch: int | None = None
    rows: int = 0
    shapes: tuple[tuple[tuple[int, ...], str], ...] = ()
    contents: int = 0


def agreed(call: str, own: WorkerPass, group: int) -> int:
    """Return the number of rows of each batch, on which all workers agree.

    Parameters
    ----------
    call : str
        The method that begins the pass.
    own : WorkerPass
        The pass of this worker.
    group : int
        Number of consecutive workers that must have the same rows; 1 if each has its own.

    Raises
    ------
    SpecError
        If the workers' passes do not fit together; the error names the workers, and what differs.
    """
    all_of = combine(f"model.{call}", own)
    _check_equal(call, "numbers of steps", [each.steps for each in all_of])
    _check_equal(call, "steps in an epoch", [each.per_epoch or "all" for each in all_of])
    _check_equal(call, "shapes and types", [each.shapes for each in all_of])
    if not any(each.rows for each in all_of):
        raise SpecError(f"model.{call}: no worker has any batch")
    for start in range(0, len(all_of), group):
        if len({each.contents for each in all_of[start : start + group]}) > 1:
            raise SpecError(
                f"model.{call}: the mesh of the distribution divides a batch into {len(all_of) // group}, for "
                f"{len(all_of)} workers, so {group} workers must have the same rows, and they have different ones (a "
                "feed gives each worker its own). Give the mesh as many parts along its batch axis as there are "
                f"workers: DeviceMesh(({len(all_of)}, devices of each worker), ('batch', 'model')), or "
                f"DeviceMesh(({len(all_of)},), ('batch',)) with variables divided along 'batch'"
            )
    return max(int(each.rows) for each in all_of)


def _check_equal(call: str, what: str, values: list[Any]) -> None:
    known = [each for each in values if each is not None]
    if any(each != known[0] for each in known):
        found = ", ".join(f"worker {number}: {each}" for number, each in enumerate(values))
        raise SpecError(
            f"model.{call}: {_DIFFERENT}, and they have different {what} ({found}): use ctx.dataset or ctx.batches, or "
            "give all workers data of the same size"
        )


def equal_sized(batches: Iterable[Any], own: WorkerPass) -> Iterator[Any]:
    """Yield a worker's batches with the number of rows on which all workers agree when the first one is there.

    Parameters
    ----------
    batches : iterable
        Those of a pass, as Keras's adapters yield them.
    own : WorkerPass
        What is known of the pass before its first batch is read.

    Raises
    ------
    SpecError
        If they don't fit those of the other workers, or the first one.
    """
    import keras

    call, adds_weights = session.call, session.adds_weights
    iterator = iter(batches)
    first = [_with_weights(each, adds_weights) for each in islice(iterator, 1)]
    arrays = keras.tree.flatten(first)
    shapes = _shapes(arrays, call)
    own = replace(own, rows=max(own.rows, _rows(arrays)) if first else 0, shapes=shapes)
    rows = _begin(call, own, arrays)
    rest = chain(first, (_with_weights(each, adds_weights) for each in iterator))
    batch: Any = first[0]
    sized = _as_many(call, rest, own.per_epoch, rows) if own.steps == UNCOUNTED else ((each, rows) for each in rest)
    for number, (each, size) in enumerate(sized):
        arrays = keras.tree.flatten(each)
        if each is None or not _rows(arrays):
            yield _padding(_with_rows(batch, size, call), call)
            continue
        if _shapes(arrays, call) != shapes:
            raise SpecError(
                f"model.{call}: the arrays of batch {number} are {_shapes(arrays, call)}, and those of the first one "
                f"{shapes}: {_DIFFERENT}. Pad them to one length, as in dataset.padded_batch(size, padded_shapes=...)"
            )
        if _rows(arrays) > size:
            raise SpecError(
                f"model.{call}: batch {number} has {_rows(arrays)} rows, and the first one {size}: {_DIFFERENT}; only "
                "smaller batches can be padded"
            )
        batch = _with_rows(each, size, call)
        yield batch


def _with_rows(batch: Any, size: int, call: str) -> Any:
    import keras

    rows = _rows(keras.tree.flatten(batch))
    if not rows:  # a worker's first batch, of which the program has dropped all rows
        return keras.tree.map_structure(lambda each: np.zeros((size, *each.shape[1:]), each.dtype), batch)
    return padded(keras.tree, batch, rows, size, call) if rows < size else batch


def _as_many(call: str, batches: Iterator[Any], per_epoch: int | None, rows: int) -> Iterator[tuple[Any, int]]:
    """Yield a worker's batches, and None for each further batch of the worker that has most; with the rows of each."""
    import keras

    yield next(batches), rows  # alone: Keras takes it to build a model, and a generator can't give it back
    most = min(_BLOCK, per_epoch or _BLOCK)
    size = most - 1 or most  # what the first batch leaves of its block
    while True:
        block = list(islice(batches, size))
        own = max((_rows(keras.tree.flatten(each)) for each in block), default=0)
        found = combine(f"model.{call}", (len(block), own))
        longest = max(count for count, _ in found)
        rows = max(rows, _for_devices(max(each for _, each in found)))
        yield from ((each, rows) for each in [*block, *[None] * (longest - len(block))])
        if longest < size:
            return
        size = most


def _padding(batch: Any, call: str) -> Any:
    """Return a batch whose rows are all padding."""
    import keras

    if not isinstance(batch, tuple) or len(batch) < 3:  # noqa: PLR2004 - features, labels and weights
        raise SpecError(
            f"model.{call}: this worker has fewer batches than another: {_DIFFERENT}, and without sample weights none "
            "can be added. Give weights, or all workers data of the same size"
        )
    x, y, weights = batch
    return x, y, keras.tree.map_structure(lambda each: np.full_like(each, -0.0, dtype=np.float32), weights)


def _with_weights(batch: Any, adds_weights: bool) -> Any:
    """Return a batch with weights, if they are wanted; Keras can't place None at the end of one."""
    import keras

    if adds_weights:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if y is not None and weights is None:
            return x, y, np.ones(_rows(keras.tree.flatten(x)), np.float32)
    while isinstance(batch, tuple) and len(batch) > 1 and batch[-1] is None:
        batch = batch[:-1]
    return batch


def _shapes(arrays: Iterable[Any], call: str) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Return shape and dtype of each array, without the rows."""
    import jax

    for each in arrays:
        if not isinstance(each, (np.ndarray, np.generic, jax.Array)):
            raise SpecError(
                f"model.{call}: {type(each).__name__} on several workers: on JAX they take arrays, and no sparse ones"
            )
    return tuple((tuple(each.shape[1:]), str(each.dtype)) for each in arrays)


def _begin(call: str, own: WorkerPass, arrays: list[Any]) -> int:
    """Return the rows of all batches of a pass."""
    import jax
    import keras

    replicas, processes = keras.distribution.distribution().num_model_replicas, jax.process_count()
    group = max(1, processes // replicas)
    own = replace(own, contents=_checksum(arrays)) if group > 1 else own
    return _for_devices(agreed(call, own, group))


def _for_devices(rows: int) -> int:
    """Return a number of rows that this worker's devices along the batch axis can share evenly, from `rows` on."""
    import jax
    import keras

    parts = max(1, keras.distribution.distribution().num_model_replicas // jax.process_count())
    return -(-rows // parts) * parts if jax.local_device_count() > 1 else rows


def _checksum(arrays: Iterable[Any]) -> int:
    checksum = 1
    for each in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(each).tobytes(), checksum)
    return checksum


def _rows(arrays: Iterable[Any]) -> int:
    return next((int(each.shape[0]) for each in arrays if each is not None and each.shape), 0)


def padded(tree: Any, batch: Any, rows: int, size: int, call: str) -> Any:
    """Return a batch that is padded with repetitions of its rows, whose weights are -0.0.

    Parameters
    ----------
    tree : module
        Keras's functions of nested structures.
    batch : tuple or structure
        Features, labels and weights.
    rows, size : int
        The number of its rows, and of those to return.
    call : str
        The method, for errors.

    Raises
    ------
    SpecError
        If it has no sample weights, with which padding could be marked.
    """
    order = np.arange(size) % rows

    def repeated(values: Any) -> Any:
        return None if values is None else np.asarray(values)[order]

    def marked(weights: Any) -> Any:
        weights = repeated(weights)
        if weights is None:
            return None
        weights = weights.astype(weights.dtype if weights.dtype.kind == "f" else np.float32)
        weights[rows:] = -0.0
        return weights

    if not isinstance(batch, tuple) and call == "predict":
        return tree.map_structure(repeated, batch)
    if isinstance(batch, tuple) and (call == "predict" or (len(batch) > 2 and batch[2] is not None)):  # noqa: PLR2004
        x, *rest = batch
        labels = [tree.map_structure(repeated, each) for each in rest[:1]]
        weights = [tree.map_structure(marked, each) for each in rest[1:]]
        return (tree.map_structure(repeated, x), *labels, *weights)
    if isinstance(batch, dict) and "sample_weight" in batch:
        features = tree.map_structure(repeated, {**batch, "sample_weight": None})
        return {**features, "sample_weight": marked(batch["sample_weight"])}
    raise SpecError(
        f"model.{call}: a batch has {rows} rows, and the first one {size}: {_DIFFERENT}, and a batch without sample "
        "weights can't be padded. Use ctx.dataset, give weights, or drop the last batch (drop_remainder=True)"
    )
