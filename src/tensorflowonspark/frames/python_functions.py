"""Block functions of plain Python functions on numpy arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.frames.analysis import Field


class Form(Enum):
    """The inputs and outputs of a user's function."""

    BLOCKS = "blocks"  # arrays of some rows to arrays of as many rows
    ROWS = "rows"  # one row's values to one row's values
    REDUCED_BLOCKS = "reduced blocks"  # arrays of some rows to one row's values
    REDUCED_ROWS = "reduced rows"  # the values of two rows to those of one

    @property
    def reduces(self) -> bool:
        """Whether the result is one row's, and not one for each row."""
        return self in (Form.REDUCED_BLOCKS, Form.REDUCED_ROWS)


@dataclass(frozen=True)
class Plain:
    """A plain function as a block function, which takes a dict of arrays of some rows."""

    function: Callable[..., Any]
    form: Form
    parameters: tuple[str, ...]
    default: str  # the name of an unnamed result

    def __call__(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results for a block by name."""
        if self.form is Form.BLOCKS:
            return self._named(**block)
        if self.form is Form.REDUCED_BLOCKS:
            return self._named(**{name: block[_base(name, block)] for name in self.parameters})
        rows = [dict(zip(block, values, strict=True)) for values in zip(*block.values(), strict=True)]
        if self.form is Form.ROWS:
            results = [self._named(**row) for row in rows]
            return {name: [result[name] for result in results] for name in results[0]}
        return reduce(self._pair, rows)

    def _pair(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        first = {f"{name}_1": value for name, value in one.items()}
        return self._named(**first, **{f"{name}_2": value for name, value in other.items()})

    def _named(self, **values: Any) -> dict[str, Any]:
        return named(self.function(**values), self.default)


def _base(parameter: str, block: Mapping[str, Any]) -> str:
    return parameter if parameter in block else parameter.removesuffix("_input")


def named(result: Any, default: str) -> dict[str, Any]:
    """Return a function's results by name.

    Raises SpecError for a tuple without names.

    Examples
    --------
    >>> named(3.0, "total"), named({"a": 1, "b": 2}, "total")
    ({'total': 3.0}, {'a': 1, 'b': 2})
    """
    if isinstance(result, Mapping):
        return {str(name): each for name, each in result.items()}
    if hasattr(result, "_asdict"):
        return dict(result._asdict())
    if isinstance(result, tuple):
        raise SpecError(f"the function returns {len(result)} results without names: return a dict of them")
    return {default: result}


def probe(function: Plain, fields: Mapping[str, Field]) -> dict[str, tuple[str, int]]:
    """Return the dtype and rank of each result for one row, from a call with two rows of ones.

    Raises SpecError if the function raises an error for these rows.
    """
    block = {name: _example(field) for name, field in fields.items()}
    columns = ", ".join(f"{name}: {field}" for name, field in fields.items())
    try:
        results = {name: np.asarray(value) for name, value in function(block).items()}
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(
            f"{function.default} was tried on two rows of ones ({columns}) to infer its results, and raised "
            f"{type(error).__name__}: {error}. If an unknown length (?) is the cause, use analyze(df) or "
            "append_shape(df, col, shape); or declare the results, as in schema='y array<float>'"
        ) from error
    a_row = 0 if function.form.reduces else 1
    return {name: (_dtype(array), array.ndim - a_row) for name, array in results.items()}


def _example(field: Field) -> Any:
    shape = (2, *[size or 1 for size in field.shape])
    if field.dtype == "string":
        return np.full(shape, "1" if field.is_text else b"1", object)
    return np.ones(shape, field.dtype)


def _dtype(array: Any) -> str:
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and isinstance(array.flat[0], str)):
        return "str"
    return "string" if array.dtype.kind in "SO" else array.dtype.name
