"""The features of rows as a model takes them: arrays of Arrow columns, in pieces of some hundreds of rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tensorflowonspark.columns import flat_columns, joined, summarize, to_array
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection

_BATCH_BYTES = 4 << 20  # of inputs in a call: it takes by far longer than what a call costs, also on a GPU
# A call for fewer rows costs more than they do; the results of more, which may be larger than the rows, take memory.
_MIN_ROWS, _MAX_ROWS = 32, 8192


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
    """Return a model's outputs for the features of a batch, of which it takes some rows per call."""
    found: dict[str, list[Any]] = {}
    step = batch_rows or _rows_per_call(batch)
    for start in range(0, batch.num_rows, step):
        for name, values in model(_slice(features, start, start + step)).items():
            found.setdefault(name, []).append(values)
    return {name: joined(pieces) for name, pieces in found.items()}


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
