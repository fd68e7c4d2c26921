"""Reductions in Spark's Python workers: each partition to one row, and each group."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import arrow_type, to_batch
from tensorflowonspark.errors import FeedError
from tensorflowonspark.ml.loading import Shipped, loaded
from tensorflowonspark.ml.predict import Taken, features_of, this_partition

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["Reduction", "reduce_group", "reduce_partition"]

_HELD = 256  # results, before they are reduced to one


@dataclass(frozen=True)
class Reduction:
    """What a task is to do: the function, what it is given, and the results' Spark types."""

    model: Shipped
    taken: Taken
    types: "tuple[tuple[str, DataType], ...]"

    @property
    def schema(self) -> pa.Schema:
        """The results' types in Arrow."""
        return pa.schema([(name, arrow_type(type_)) for name, type_ in self.types])


def reduce_partition(reduction: Reduction, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the one row to which a partition is reduced, if it has any."""
    held: list[Mapping[str, Any]] = []
    row = 0
    for batch in batches:
        if batch.num_rows:
            held.append(_reduced(reduction, batch, this_partition(), row))
        if len(held) == _HELD:
            held = [_again(reduction, held)]
        row += batch.num_rows
    if held:
        yield _as_row(_again(reduction, held), reduction.schema)


def reduce_group(reduction: Reduction, keys: pa.Schema, key: tuple[Any, ...], table: pa.Table) -> pa.Table:
    """Return the one row to which a group is reduced, behind its key."""
    values = [each.as_py() if isinstance(each, pa.Scalar) else each for each in key]
    batch = table.select(list(reduction.taken.columns)).combine_chunks().to_batches()[0]
    try:
        row = _as_row(_reduced(reduction, batch, 0, 0), reduction.schema)
    except FeedError as error:
        group = dict(zip(keys.names, values, strict=True))
        raise FeedError(f"in the group {group} (its rows counted from 0, as partition 0): {error}") from error
    own = [pa.array([value], field.type) for value, field in zip(values, keys, strict=True)]
    return pa.Table.from_arrays([*own, *row.columns], [*keys.names, *row.schema.names])


def _reduced(reduction: Reduction, batch: pa.RecordBatch, partition: int, row: int) -> dict[str, Any]:
    return loaded(reduction.model)(features_of(reduction.taken, batch, partition, row))


def _again(reduction: Reduction, held: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    if len(held) == 1:
        return held[0]
    return loaded(reduction.model)({name: np.stack([each[name] for each in held]) for name in held[0]})


def _as_row(result: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    return to_batch({name: np.asarray(value)[None] for name, value in result.items()}, schema, 1)
