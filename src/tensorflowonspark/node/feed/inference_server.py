"""Inference server: calls the program's function with a partition's rows, and sends its results back in order."""

from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any, Protocol

import pyarrow as pa

from tensorflowonspark.columns import Ragged, flat_columns, summarize, to_array, to_batch
from tensorflowonspark.errors import FeedError, error_text
from tensorflowonspark.feed_messages import InferenceHeader, SplitManifest
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection


class InferenceServer(Protocol):
    """An object that answers the rows of a partition."""

    def answer(self, header: InferenceHeader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results of the rows, in order."""


class FunctionServer:
    """An inference server that calls a function, for many partitions at a time but in one thread at a time.

    The function takes an array, or a dict of arrays by column, of at most `batch_rows` rows, and returns as many
    results in the same way.
    """

    def __init__(self, function: Callable[[Any], Any], batch_rows: int, options: FeatureOptions) -> None:
        self._function = function
        self._batch_rows = batch_rows
        self._options = options
        self._lock = Lock()  # most functions are not thread-safe, and one call keeps the processor busy

    def answer(self, header: InferenceHeader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a batch of results, of the requested schema, for each batch of rows."""
        schema = pa.ipc.read_schema(pa.py_buffer(header.schema))
        row = 0
        for batch in batches:
            flat = flat_columns(batch)
            pieces = []
            for start in range(0, flat.num_rows, self._batch_rows):
                piece = flat.slice(start, self._batch_rows)
                pieces.append(self._results(piece, schema, header.partition, row + start))
            row += flat.num_rows
            table = pa.Table.from_batches(pieces, schema).combine_chunks()
            yield from table.to_batches() or [pa.RecordBatch.from_pylist([], schema)]

    def _results(self, batch: pa.RecordBatch, schema: pa.Schema, partition: int, first_row: int) -> pa.RecordBatch:
        summary = summarize(batch, partition, first_row)
        manifest = SplitManifest({}, columns=summary, schema=batch.schema.serialize().to_pybytes())
        selection = Selection(manifest, self._options, inference=True)
        arrays = {name: to_array(batch.column(name), kind) for name, kind in selection.kinds.items()}
        taken = selection.pick_features(
            {name: each.rows() if isinstance(each, Ragged) else each for name, each in arrays.items()}
        )
        rows = f"rows {first_row} to {first_row + batch.num_rows - 1} of partition {partition}"
        with self._lock:
            try:
                results = _as_numpy(self._function(taken))
            except Exception as error:
                raise FeedError(
                    f"the program's function for inference raised {type(error).__name__}: {error_text(error)} ({rows})"
                ) from error
        try:
            return to_batch(results, schema, batch.num_rows)
        except FeedError as error:
            raise FeedError(f"{error} ({rows})") from error.__cause__


def _as_numpy(results: Any) -> Any:
    if isinstance(results, Mapping):
        return {name: _as_numpy(each) for name, each in results.items()}
    return results.numpy() if hasattr(results, "numpy") else results
