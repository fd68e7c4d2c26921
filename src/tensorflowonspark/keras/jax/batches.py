"""Batches of equal size on all workers.

JAX takes the batch of each process for one part of a batch of all, and all parts for equally large. It checks neither:
with parts of different sizes, the processes compute different results, and nothing reports it. So when a pass over the
data begins, the workers compare the shapes of their first batches and their numbers of steps. Smaller batches are
padded to the size of the first with rows of weight -0.0, as feeds pad them (`padding` leaves them out).
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.session import session
from tensorflowonspark.keras.workers import combine

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
class FirstBatch:
    """A worker's first batch of a pass, which is compared with those of the others.

    Attributes
    ----------
    rows : int
        Its number of rows; 0 if there is no batch.
    steps : int or None
        The number of batches in the pass, if it is known.
    shapes : tuple
        Shape and dtype of each array, without the rows.
    contents : int
        A checksum, if several workers must have the same rows; else 0.
    """

    rows: int
    steps: int | None
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    contents: int = 0


def agreed(call: str, own: FirstBatch, group: int) -> int:
    """Return the number of rows of each batch, on which all workers agree.

    Parameters
    ----------
    call : str
        The method that begins the pass.
    own : FirstBatch
        This worker's batch.
    group : int
        Number of consecutive workers that must have the same rows; 1 if each has its own.

    Raises
    ------
    SpecError
        If the workers' batches do not fit together; the error names the workers, and what differs.
    """
    all_of = combine(f"model.{call}", own)
    _check_equal(call, "numbers of steps", [each.steps for each in all_of])
    _check_equal(call, "shapes and types", [each.shapes for each in all_of])
    if not own.rows:
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


def equal_sized(batches: Iterable[Any], steps: int | None) -> Iterator[Any]:
    """Yield a worker's batches with the number of rows on which all workers agree when the first one is there.

    Parameters
    ----------
    batches : iterable
        Those of a pass, as Keras's adapters yield them.
    steps : int or None
        Their number, if it is known.

    Raises
    ------
    SpecError
        If they don't fit those of the other workers, or the first one.
    """
    import keras

    call, adds_weights = session.call, session.adds_weights
    shapes: tuple[Any, ...] = ()
    rows = 0
    for number, each in enumerate(batches):
        batch = _with_weights(each, adds_weights)
        arrays = [array for array in keras.tree.flatten(batch) if array is not None]
        if not number:
            shapes = _shapes(arrays, call)
            rows = _begin(call, arrays, shapes, steps)
        if _shapes(arrays, call) != shapes:
            raise SpecError(
                f"model.{call}: the arrays of batch {number} are {_shapes(arrays, call)}, and those of the first one "
                f"{shapes}: {_DIFFERENT}. Pad them to one length, as in dataset.padded_batch(size, padded_shapes=...)"
            )
        found = _rows(arrays)
        if found > rows:
            raise SpecError(
                f"model.{call}: batch {number} has {found} rows, and the first one {rows}: {_DIFFERENT}; only smaller "
                "batches can be padded"
            )
        yield padded(keras.tree, batch, found, rows, call) if found < rows else batch
    if not rows:
        agreed(call, FirstBatch(0, steps, ()), 1)


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


def _begin(call: str, arrays: list[Any], shapes: tuple[Any, ...], steps: int | None) -> int:
    """Return the rows of all batches of a pass."""
    import jax
    import keras

    replicas, processes = keras.distribution.distribution().num_model_replicas, jax.process_count()
    group = max(1, processes // replicas)
    rows = agreed(call, FirstBatch(_rows(arrays), steps, shapes, _checksum(arrays) if group > 1 else 0), group)
    parts = max(1, replicas // processes)  # of this worker, one for each of its devices along the batch axis
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
