"""The features of rows as a model takes them: arrays of Arrow columns, in pieces of some hundreds of rows."""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from tensorflowonspark.columns import flat_columns, joined, summarize, to_array
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection

_log = logging.getLogger(__name__)
_BATCH_BYTES = 4 << 20  # of inputs in a call: it takes by far longer than what a call costs, also on a GPU
# A call for fewer rows costs more than they do; the results of more, which may be larger than the rows, take memory.
_MIN_ROWS, _MAX_ROWS = 32, 8192
# The rows that a model takes at once in this process since there was no memory for more.
_most_rows: "WeakKeyDictionary[Callable[..., Any], int]" = WeakKeyDictionary()


@dataclass(frozen=True)
class TakenColumns:
    """The columns that a model takes, with their conversion to arrays."""

    columns: tuple[str, ...]  # the model receives one as an array, several as a dict of arrays
    by_column: Mapping[str, Mapping[str, Any]]  # the mappings ``shapes``, ``dtypes`` and ``fill``
    # the columns by the parameters of a function, which receives a dict by these
    parameters: Mapping[str, str] | None = None
    advice: str = ""  # is appended to errors about unsuitable values
    skipping: str = ""  # is appended to those of them that single rows cause


def call_in_pieces(
    model: Callable[[Any], Mapping[str, Any]], features: Any, batch: pa.RecordBatch, batch_rows: int | None
) -> dict[str, Any]:
    """Return a model's outputs for the features of a batch, of which it takes some rows per call.

    If there is no memory for these, it takes half of them from then on, down to one.
    """
    found: dict[str, list[Any]] = {}
    step = batch_rows or _rows_per_call(batch)
    step = min(step, _most_rows.get(model, step))
    start = 0
    while start < batch.num_rows:
        try:
            results = model(_slice(features, start, start + step))
        except Exception as error:
            if not _is_out_of_memory(error) or step == 1:
                raise
            step = max(1, min(step, batch.num_rows - start) // 2)
            _most_rows[model] = step
            _log.warning(
                "no memory for a call of the model with %d rows: it takes %d at once from now on", 2 * step, step
            )
            continue
        start += step
        for name, values in results.items():
            found.setdefault(name, []).append(values)
    return {name: joined(pieces) for name, pieces in found.items()}


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether a call failed for want of memory, of the host or of a GPU: so that fewer rows may pass."""
    tensorflow, jax = sys.modules.get("tensorflow"), sys.modules.get("jax")
    if tensorflow is not None and isinstance(error, tensorflow.errors.ResourceExhaustedError):
        return True
    if jax is not None and isinstance(error, jax.errors.JaxRuntimeError):
        return str(error).startswith("RESOURCE_EXHAUSTED")  # the status, which is all that this error has
    return isinstance(error, MemoryError)


def _rows_per_call(batch: pa.RecordBatch) -> int:
    """Return a number of rows that amortizes the cost of a call and bounds the memory of the results."""
    return int(min(max(_BATCH_BYTES * batch.num_rows // max(1, batch.nbytes), _MIN_ROWS), _MAX_ROWS))


def features_of(
    taken: TakenColumns, batch: pa.RecordBatch, partition: int = 0, row: int = 0, *, by_name: bool = False
) -> Any:
    """Return the features of a batch as NumPy arrays: one, or a dict of them by name.

    The partition's number and that of the batch's first row in it are for errors. With `by_name` a single column is a
    dict too. Raises FeedError, which names the column and the row, if a value can't be converted.
    """
    flat = flat_columns(batch.select(list(taken.columns)))
    summary = summarize(flat, partition, row)
    manifest = SplitManifest({}, columns=summary, schema=flat.schema.serialize().to_pybytes())
    features = taken.columns[0] if len(taken.columns) == 1 else list(taken.columns)
    try:
        options = FeatureOptions(features=features, **taken.by_column)  # type: ignore[arg-type]
        selection = Selection(manifest, options, inference=True)
        arrays = {name: to_array(flat.column(name), kind) for name, kind in selection.kinds.items()}
    except FeedError as error:
        advice = taken.skipping if error.skippable and taken.skipping else taken.advice
        if not advice:
            raise
        raise FeedError(f"{error}. {advice}", skippable=error.skippable) from None
    if taken.parameters is not None:
        return {parameter: arrays[column] for parameter, column in taken.parameters.items()}
    return arrays if by_name else selection.pick_features(arrays)


def _slice(features: Any, start: int, stop: int) -> Any:
    if isinstance(features, Mapping):
        return {name: _slice(each, start, stop) for name, each in features.items()}
    return features[start:stop]
