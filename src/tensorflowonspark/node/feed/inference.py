"""Inference server: calls the program's function with a partition's rows, and sends its results back in order."""

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, Protocol

import pyarrow as pa

from tensorflowonspark.columns import Ragged, flat_columns, summarize, to_array, to_batch
from tensorflowonspark.errors import FeedError, error_text
from tensorflowonspark.feed_messages import InferenceHeader, SplitManifest
from tensorflowonspark.node.feed.selection import Options, Selection

__all__ = ["Answerer", "InferenceServer"]


class InferenceServer(Protocol):
    """What answers the rows that tasks send; `Answerer` says how."""

    def answer(self, header: InferenceHeader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...  # noqa: D102


class Answerer:
    """Calls a program's function with the rows of many partitions at a time; one call at a time.

    Parameters
    ----------
    function : callable
        Takes an array, or a dict of arrays by column, and returns as many results: an array, or a dict of them.
    batch_rows : int
        How many rows it gets at the most.
    options : Options
        Which columns it gets, and how.
    """

    def __init__(self, function: Callable[[Any], Any], batch_rows: int, options: Options) -> None:
        self._function = function
        self._batch_rows = batch_rows
        self._options = options
        self._lock = Lock()  # most functions are not made for several threads, and one keeps the processor busy

    def answer(self, header: InferenceHeader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a batch of results, of the schema that was asked for, for each batch of rows."""
        wanted = pa.ipc.read_schema(pa.py_buffer(header.schema))
        row = 0
        for batch in batches:
            flat = flat_columns(batch)
            pieces = []
            for start in range(0, flat.num_rows, self._batch_rows):
                piece = flat.slice(start, self._batch_rows)
                pieces.append(self._results(piece, wanted, header.partition, row + start))
            row += flat.num_rows
            table = pa.Table.from_batches(pieces, wanted).combine_chunks()
            yield from table.to_batches() or [pa.RecordBatch.from_pylist([], wanted)]

    def _results(self, batch: pa.RecordBatch, wanted: pa.Schema, partition: int, first_row: int) -> pa.RecordBatch:
        summary = summarize(batch, partition, first_row)
        contents = SplitManifest({}, columns=summary, schema=batch.schema.serialize().to_pybytes())
        selection = Selection(contents, self._options, inference=True)
        arrays = {name: to_array(batch.column(name), kind) for name, kind in selection.kinds.items()}
        taken = selection.pick_features(
            {name: each.rows() if isinstance(each, Ragged) else each for name, each in arrays.items()}
        )
        place = f"rows {first_row} to {first_row + batch.num_rows - 1} of partition {partition}"
        with self._lock:
            try:
                results = self._function(taken)
            except Exception as error:
                raise FeedError(
                    f"the program's function for inference raised {type(error).__name__}: {error_text(error)} ({place})"
                ) from error
        try:
            return to_batch(results, wanted, batch.num_rows)
        except FeedError as error:
            raise FeedError(f"{error} ({place})") from error.__cause__
