"""Row filters: expressions of Arrow on the columns of files, which need not be among the columns that are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tensorflowonspark.errors import SpecError


@dataclass(frozen=True)
class RowFilter:
    """A filter of rows that fits the columns of some files."""

    expression: Any  # a boolean one of Arrow; rows for which it is null do not pass
    columns: tuple[str, ...]  # that it needs

    @classmethod
    def of(cls, expression: Any, schema: pa.Schema) -> "RowFilter":
        """Return the filter of an expression.

        Examples
        --------
        >>> RowFilter.of(pc.field("x") > 3, pa.schema({"x": pa.int64(), "y": pa.int64()})).columns
        ('x',)
        >>> RowFilter.of(pc.field("z") > 3, pa.schema({"x": pa.int64()}))
        Traceback (most recent call last):
            ...
        tensorflowonspark.errors.SpecError: filter=(z > 3): No match for FieldRef.Name(z), only x
        """
        if not isinstance(expression, pc.Expression):
            raise SpecError(f'filter={expression!r}: expected an expression of Arrow, as in pc.field("x") > 3')
        if "FieldPath(" in str(expression):
            raise SpecError(f'filter={expression}: name its columns, as in pc.field("x") > 3')
        try:
            kind = _evaluate(expression, pa.RecordBatch.from_pylist([], schema)).type
        except (pa.ArrowException, TypeError, ValueError) as error:
            reason, unknown, _ = str(error).partition(" in ")
            known = f", only {', '.join(schema.names)}" if unknown and "No match" in reason else ""
            raise SpecError(f"filter={expression}: {reason if known else error}{known}") from None
        if not pa.types.is_boolean(kind):
            raise SpecError(f"filter={expression}: it is of type {kind}, and must be true or false")
        return cls(expression, tuple(_needed(expression, schema, schema.names)))

    def passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass, in their order; `batch` has the columns that the filter needs."""
        return batch.filter(_evaluate(self.expression, batch))


def _evaluate(expression: Any, batch: pa.RecordBatch) -> pa.Array:
    rows = _dataset(batch)
    found = rows.scanner(columns={"passes": expression}, use_threads=False).to_table().column("passes")
    return pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], found.type)


def _dataset(batch: pa.RecordBatch) -> Any:
    from pyarrow.dataset import InMemoryDataset  # imports pandas, which no process needs without a filter

    return InMemoryDataset([batch], schema=batch.schema)


def _needed(expression: Any, schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return those of some columns without which an expression can't be evaluated; Arrow does not list them."""
    rest = pa.schema([each for each in schema if each.name not in names])
    try:
        _dataset(pa.RecordBatch.from_pylist([], rest)).scanner(filter=expression)
        return []
    except pa.ArrowException:
        if len(names) == 1:
            return list(names)
    half = len(names) // 2
    return _needed(expression, schema, names[:half]) + _needed(expression, schema, names[half:])
