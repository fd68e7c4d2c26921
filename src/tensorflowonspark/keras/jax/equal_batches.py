"""Batches of equal size on all workers.

JAX takes the batch of each process for one part of a batch of all, and all parts for equally large. It checks neither:
with parts of different sizes, the processes compute different results, and nothing reports it. So when a pass over the
data begins, the workers compare the shapes of their first batches and their numbers of steps. Smaller batches are
filled up to the size of the largest. The workers exchange, every few batches, how many batches each has, their shapes,
which may be others in each step, and how many rows of each are real: the step takes out the others (`short`).
"""

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.feed_tracking import row_counts
from tensorflowonspark.keras.jax.short import Short
from tensorflowonspark.keras.workers import combine

Shapes = tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of each array of a batch, without the rows

ENDLESS, UNCOUNTED = "endless", "uncounted"  # numbers of batches
_BLOCK = 16  # batches, after which the workers exchange how many rows they have
_BLOCK_BYTES = 32 << 20  # of them, which are in memory meanwhile
_DIFFERENT = "on JAX all workers must take the same steps, with batches of one shape"


@dataclass(frozen=True)
class Reader:
    """The method of the model that reads data, as in ``fit``."""

    call: str = "fit"
    needs_weights: bool = True  # whether a dataset of a feed must have the weights of its rows


_reader = Reader()


def reader() -> Reader:
    """Return the method that reads data at this time, or the one that is most usual if none does."""
    return _reader


@contextmanager
def reads_data_for(call: str, *, needs_weights: bool) -> Iterator[None]:
    """Name the method that reads data for the duration of a block, for errors; as `Reader` has it."""
    global _reader  # noqa: PLW0603 - of this process: Keras, which calls what reads, passes nothing on
    before, _reader = _reader, Reader(call, needs_weights)
    try:
        yield
    finally:
        _reader = before


@dataclass(frozen=True)
class WorkerPass:
    """A worker's pass over its data, as far as it is known when the pass begins; compared with those of the others."""

    steps: int | str | None  # `ENDLESS`, `UNCOUNTED` if only the data shows the end, None while a feed's rows arrive
    per_epoch: int | None = None  # the steps after which the program ends an epoch
    rows: int = 0  # the most of the first batch's and the feed's batches', which a program may have cut; 0 without one
    shapes: Shapes = ()  # of the first batch
    contents: int = 0  # a checksum of it, if several workers must have the same rows
    real: int = 0  # the number of its real rows


@dataclass
class Padding:
    """What is known of the rows that fill up a worker's batches in a pass."""

    fed: bool = False  # whether a feed marks such rows with the weight -0.0
    # real rows of each batch, if the feed knows: the first, unless a map moved them
    planned: Sequence[int] | None = None
    rows: int = 0  # of each of these batches; of one with another number only the weights show the real ones
    own_weights: bool = False  # whether a batch so far had weights of the program's own, which mark other rows

    def real(self, batch: Any, number: int) -> Any:
        """Return a mask of the real rows of a batch; if nothing shows which they are, it is a `SpecError`."""
        import keras

        rows = _rows(keras.tree.flatten(batch))
        if self.planned is not None and number < len(self.planned) and rows == self.rows:
            by_plan = np.arange(rows) < self.planned[number]
            real = marked(batch, rows, required=False)
            self.own_weights |= bool(real.sum() != self.planned[number])
            are_moved = not self.own_weights and _have_weight(batch, ~by_plan)
            return real if are_moved else by_plan
        if not self.fed and not row_counts.padded:
            return np.ones(rows, bool)
        return marked(batch, rows, required=self.fed)


def marked(batch: Any, rows: int, *, required: bool) -> Any:
    """Return a mask of the real rows of a batch: those whose weight is not -0.0 for any output.

    A batch of `rows` rows without weights is refused if they are `required`.
    """
    real = np.ones(rows, bool)
    found = _weights(batch)
    for each in found:
        if each.ndim and each.dtype.kind == "f":  # a row of several time steps is padding if all of them are
            real &= ~((each == 0) & np.signbit(each)).reshape(rows, -1).all(axis=1)
    if required and not found:
        raise SpecError(
            f"model.{_reader.call}: the batches come from a feed, and have lost the weights of their rows, which mark "
            "those that fill up a batch: keep them, as in dataset.map(lambda x, y, weights: (..., ..., weights))"
        )
    return real


def _have_weight(batch: Any, chosen: Any) -> bool:
    """Return whether any of the chosen rows has a weight, as rows that fill up a batch have not."""
    return any(bool(np.any(each[chosen])) for each in _weights(batch) if each.ndim)


def _weights(batch: Any) -> list[Any]:
    import keras

    is_dict = isinstance(batch, dict)
    weights = batch.get("sample_weight") if is_dict else keras.utils.unpack_x_y_sample_weight(batch)[2]
    return [np.asarray(each) for each in keras.tree.flatten(weights) if each is not None]


def agreed(call: str, own: WorkerPass, group: int) -> WorkerPass:
    """Return the pass on which all workers agree: with the rows of each batch, and all real rows of the first batch.

    As many consecutive workers as `group` must have the same rows; it is 1 if each has its own. If the passes do not
    fit together, a `SpecError` names the workers, and what differs.
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
    steps = None if any(each.steps is None for each in all_of) else own.steps
    rows, real = max(each.rows for each in all_of), sum(each.real for each in all_of[::group])
    return replace(own, steps=steps, rows=rows, real=real)


def _check_equal(call: str, what: str, values: list[Any]) -> None:
    known = [each for each in values if each is not None]
    if any(each != known[0] for each in known):
        found = ", ".join(f"worker {number}: {each}" for number, each in enumerate(values))
        raise SpecError(
            f"model.{call}: {_DIFFERENT}, and they have different {what} ({found}): use ctx.dataset or ctx.batches, or "
            "give all workers data of the same size"
        )


def equal_sized(batches: Iterable[Any], own: WorkerPass, padding: Padding | None = None) -> Iterator[Any]:
    """Yield a worker's batches with the number of rows on which all workers agree; `Short` ones mask the real rows.

    `own` is what is known of the pass before its first batch is read. Without `padding` no rows fill up its batches.
    Those that don't fit the other workers', or the first one, are a `SpecError`.
    """
    import keras

    call, padding = _reader.call, padding or Padding()
    numbered = ((each, padding.real(each, number)) for number, each in enumerate(map(_without_none, batches)))
    first = list(islice(numbered, 1))
    arrays = keras.tree.flatten([batch for batch, _ in first])
    shapes = _shapes(arrays, call)
    real = sum(int(mask.sum()) for _, mask in first)
    own = replace(own, rows=max(own.rows, _rows(arrays)) if first else 0, shapes=shapes, real=real)
    own = _begin(call, own, arrays)
    template = first[0][0]
    for batch, mask, size, real_rows, shapes in _exchanged(call, chain(first, numbered), own):
        if real_rows:  # else no worker has any
            own_rows = _without_rows(template, shapes) if batch is None or not len(mask) else batch
            yield shortened(filled(own_rows, size), mask, size, real_rows, _parts())


def shortened(batch: Any, real: Any, size: int, real_rows: int, parts: int) -> Any:
    """Return a batch whose first array has a mask of the real rows, if not all are.

    `size` is the number of rows of this worker's part, and `real` their mask, which may be shorter; `real_rows` is the
    number of real rows of all `parts`.
    """
    import keras

    if real_rows == size * parts:
        return batch
    mask = np.zeros(size, bool)
    mask[: len(real)] = real
    places = iter([True])

    def first(each: Any) -> Any:
        return Short(each, mask, real_rows) if each is not None and next(places, False) else each

    return keras.tree.map_structure(first, batch)


class Part(NamedTuple):
    """A worker's part of a batch of all: its rows, those of them that are real, and its shapes, if it has rows."""

    rows: int
    real: int
    shapes: Shapes | None = None


def _exchanged(
    call: str, batches: Iterator[tuple[Any, Any]], own: WorkerPass
) -> Iterator[tuple[Any, Any, int, int, Shapes]]:
    """Yield each batch with its mask, the rows that it needs, all workers' real rows in it, and its shapes.

    None stands for each further batch of the worker that has most.
    """
    rows, shapes = own.rows, own.shapes
    yield *next(batches), rows, own.real, shapes  # alone: Keras builds a model with it, and a generator can't go back
    group, done = _group(), 1
    most = 1 if own.steps is None else min(_most(shapes, rows), own.per_epoch or _BLOCK)
    size = most - 1 or most  # what the first batch leaves of its block
    while own.steps != done:
        block = list(islice(batches, min(size, own.steps - done) if isinstance(own.steps, int) else size))
        found = combine(f"model.{call}", [_part(call, batch, real) for batch, real in block])
        longest = max(map(len, found))
        rows = max(rows, _for_devices(max((each.rows for parts in found for each in parts), default=0)))
        for number in range(longest):
            parts = [each[number] if number < len(each) else Part(0, 0) for each in found]
            shapes = _shapes_of_all(call, done + number, parts, own.shapes)
            if shapes != own.shapes:
                most = min(most, _most(shapes, rows))
            batch, mask = block[number] if number < len(block) else (None, np.zeros(0, bool))
            yield batch, mask, rows, sum(each.real for each in parts[::group]), shapes
        done += longest
        if longest < size:
            break
        size = most
    next(batches, None)  # a feed's pass ends when more is asked for


def _part(call: str, batch: Any, real: Any) -> Part:
    import keras

    arrays = keras.tree.flatten(batch)
    rows = _rows(arrays)
    return Part(rows, int(real.sum()), _shapes(arrays, call) if rows else None)


def _shapes_of_all(call: str, number: int, parts: Sequence[Part], first: Shapes) -> Shapes:
    """Return the shapes of a batch; workers with different ones, or dtypes other than at first, are a `SpecError`."""
    shapes = [each.shapes for each in parts]
    _check_equal(call, f"shapes and types in batch {number}", shapes)
    found = next((each for each in shapes if each is not None), first)
    if [dtype for _, dtype in found] != [dtype for _, dtype in first]:
        raise SpecError(f"model.{call}: the arrays of batch {number} are {found}, and those of the first one {first}")
    return found


def _most(shapes: Shapes, rows: int) -> int:
    """Return how many batches the workers hold while they exchange how many rows each has."""
    import jax.numpy as jnp  # knows more types than NumPy

    size = sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in shapes) * rows
    return max(1, min(_BLOCK, _BLOCK_BYTES // max(1, size)))


def _without_rows(template: Any, shapes: Shapes) -> Any:
    """Return a batch in the structure and with the dtypes of another one, with these shapes and no rows."""
    import keras

    of = iter(shapes)
    return keras.tree.map_structure(
        lambda each: None if each is None else np.zeros((0, *next(of)[0]), each.dtype), template
    )


def filled(batch: Any, size: int) -> Any:
    """Return a batch with so many rows: its own, and repetitions of them; zeros if it has none."""
    import keras

    def resized(values: Any) -> Any:
        if values is None or len(values) == size:
            return values
        if not len(values):
            return np.zeros((size, *values.shape[1:]), values.dtype)
        return np.asarray(values)[np.arange(size) % len(values)]

    return keras.tree.map_structure(resized, batch)


def _without_none(batch: Any) -> Any:
    """Return a batch without labels and weights that are None, which come last."""
    while isinstance(batch, tuple) and len(batch) > 1 and batch[-1] is None:
        batch = batch[:-1]
    return batch


def _shapes(arrays: Iterable[Any], call: str) -> Shapes:
    """Return shape and dtype of each array, without the rows."""
    import jax

    for each in arrays:
        if not isinstance(each, (np.ndarray, np.generic, jax.Array)):
            raise SpecError(
                f"model.{call}: {type(each).__name__} on several workers: on JAX they take arrays, and no sparse ones"
            )
    return tuple((tuple(each.shape[1:]), str(each.dtype)) for each in arrays)


def _begin(call: str, own: WorkerPass, arrays: list[Any]) -> WorkerPass:
    """Return the pass on which all workers agree."""
    group = _group()
    own = agreed(call, replace(own, contents=_checksum(arrays)) if group > 1 else own, group)
    return replace(own, rows=_for_devices(own.rows))


def _parts() -> int:
    """Return the number of processes whose rows make a batch; the others have the same rows as one of these."""
    import jax

    return int(jax.process_count()) // _group()


def _group() -> int:
    """Return the number of consecutive processes that must have the same rows."""
    import jax
    import keras

    return int(max(1, jax.process_count() // keras.distribution.distribution().num_model_replicas))


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


def batch_of_all(call: str, batch: Any) -> Any:
    """Return this worker's part of a batch that a program gives itself to all workers, each with rows of its own."""
    import keras

    batch = keras.tree.map_structure(
        lambda each: each if each is None or hasattr(each, "shape") else np.asarray(each), batch
    )
    shapes = _shapes([each for each in keras.tree.flatten(batch) if each is not None], call)
    real = Padding().real(batch, 0)
    of_all = combine(f"model.{call}", (len(real), shapes, int(real.sum())))
    _check_equal(call, "shapes and types", [shapes for _, shapes, _ in of_all])
    size = _for_devices(max(rows for rows, *_ in of_all))
    total = sum(count for *_, count in of_all[:: _group()])
    if not total:
        raise SpecError(f"model.{call}: no worker has a row in this batch, which no step can take: leave it out")
    return shortened(filled(batch, size), real, size, total, _parts())
