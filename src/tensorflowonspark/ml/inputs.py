"""Conversion of feature columns to a model's inputs: one tensor, several by name, or several columns as one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.keras.structure import TensorInfo

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


_PARAMS = {"inputs": "featuresCols", "outputs": "labelCols"}


def column_shapes(
    inputs: Sequence[TensorInfo], columns: Sequence[str], arrays: Sequence[str], declared: Mapping[str, Any]
) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of each column: as the user declares it, or as the model's input has it.

    `arrays` are the columns whose values are arrays, vectors or bytes, and `declared` has the user's shapes by column.

    Examples
    --------
    >>> image = TensorInfo("pixels", (28, 28, 1), "float32")
    >>> column_shapes([image], ["image"], ["image"], {})
    {'image': (28, 28, 1)}
    """
    shapes = {}
    side_by_side = len(inputs) == 1 < len(columns)
    for column, taken in zip(columns, input_of_each(inputs, columns), strict=True):
        if column not in arrays or taken is None or side_by_side:
            continue
        if taken.shape and taken.is_fixed and taken.dtype != "string":
            shapes[column] = taken.shape
    return {**shapes, **{name: tuple(shape) for name, shape in declared.items()}}


def check_dtypes(inputs: Sequence[TensorInfo], dtypes: Mapping[str, str]) -> None:
    """Refuse columns of strings for inputs of numbers, and columns of numbers for inputs of strings.

    The dtypes are those of the feature columns, in order; ``string`` for strings and bytes. Nothing is checked if no
    input is known.

    Examples
    --------
    >>> check_dtypes([TensorInfo("x", (1,), "float32")], {"city": "string"})
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: column 'city' holds strings or bytes, and the model's input 'x' takes float32: \
index it (StringIndexer), cast it (df.withColumn('city', df['city'].cast('float'))), or decode it in Spark; or begin \
the model with a layer that takes strings (StringLookup, TextVectorization)
    """
    for (column, dtype), taken in zip(dtypes.items(), input_of_each(inputs, list(dtypes)), strict=True):
        if taken is None or (dtype == "string") == (taken.dtype == "string"):
            continue
        if dtype == "string":
            raise SpecError(
                f"column {column!r} holds strings or bytes, and the model's input {taken.name!r} takes {taken.dtype}: "
                f"index it (StringIndexer), cast it (df.withColumn({column!r}, df[{column!r}].cast('float'))), or "
                "decode it in Spark; or begin the model with a layer that takes strings (StringLookup, "
                "TextVectorization)"
            )
        raise SpecError(
            f"column {column!r} holds {dtype}, and the model's input {taken.name!r} takes strings: cast it "
            f"(df.withColumn({column!r}, df[{column!r}].cast('string')))"
        )


def input_of_each(inputs: Sequence[TensorInfo], columns: Sequence[str]) -> list[TensorInfo | None]:
    """Return the input that receives each column, as in `to_inputs`."""
    if len(inputs) == 1:
        return [inputs[0]] * len(columns)
    if are_in_order([each.name for each in inputs], columns, "inputs"):
        return list(inputs)
    by_name = {each.name: each for each in inputs}
    return [by_name.get(column) for column in columns]


def are_in_order(names: Sequence[str], columns: Sequence[str], what: str) -> bool:
    """Return whether columns belong to a model's inputs or outputs (`what`) in order, and else by name.

    In order if they are as many, and none has a name of these. Raises SpecError if some names match and others don't,
    or an input or output has no column.

    Examples
    --------
    >>> are_in_order(["input_1", "input_2"], ["user", "item"], "inputs")
    True
    >>> are_in_order(["user", "item"], ["item", "user"], "inputs")
    False
    """
    missing = [name for name in names if name not in columns]
    if missing and len(names) != len(columns):
        raise SpecError(
            f"the model has the {what} {', '.join(map(repr, names))}, and no column belongs to "
            f"{', '.join(map(repr, missing))}: name one for each ({_PARAMS[what]})"
        )
    if not missing or not names:
        return False
    if set(names) & set(columns):
        raise SpecError(
            f"columns {', '.join(map(repr, columns))} and the model's {what} {', '.join(map(repr, names))}: "
            f"{', '.join(repr(each) for each in columns if each not in names)} is none of them, and others match. Name "
            "all columns as these (withColumnRenamed), or none, which are taken in order"
        )
    return True


def to_inputs(features: Mapping[str, Any], inputs: Sequence[TensorInfo]) -> Any:
    """Return a batch's features, tensors or arrays by column, in the structure of the model's inputs.

    That is one tensor for one input, and for one column if no input is known, as before the model's first call;
    otherwise tensors by input. For an input of integers, of its dtype: Keras would cast them too, but let a large one
    become another.
    """
    columns = list(features.items())
    if len(inputs) == 1 and len(columns) > 1:
        return _side_by_side(columns, inputs[0])
    if len(columns) == 1 and len(inputs) <= 1:
        return _whole(*columns[0], inputs[0] if inputs else None)
    taken = dict(zip(features, input_of_each(inputs, list(features)), strict=True))
    return {
        taken_by.name if taken_by else name: _whole(name, features[name], taken_by) for name, taken_by in taken.items()
    }


def _side_by_side(columns: Sequence[tuple[str, Any]], taken: TensorInfo) -> Any:
    alike = [each if taken.dtype == "string" else exact_cast(name, each, taken.dtype) for name, each in columns]
    wide = [each[:, None] if len(each.shape) == 1 else each for each in alike]
    if isinstance(wide[0], np.ndarray):
        return np.concatenate(wide, axis=-1)
    import tensorflow as tf

    return tf.concat(wide, axis=-1)


def _whole(name: str, values: Any, taken: TensorInfo | None) -> Any:
    """Return a column's values of the input's dtype if that or their own is one of integers, or else as they are."""
    casts = taken is not None and any(each.startswith(("int", "uint")) for each in (values.dtype.name, taken.dtype))
    return exact_cast(name, values, taken.dtype) if taken and casts else values


def held(inputs: Sequence[TensorInfo], backend: str) -> list[TensorInfo]:
    """Return a model's inputs with the dtypes that its backend has: of JAX's integers 32 bits are kept, by default.

    Examples
    --------
    >>> held([TensorInfo("x", (1,), "int64")], "tensorflow")
    [TensorInfo(name='x', shape=(1,), dtype='int64')]
    """
    if backend != "jax" or import_module("jax").config.jax_enable_x64:
        return list(inputs)
    return [replace(each, dtype=each.dtype.replace("int64", "int32")) for each in inputs]


def exact_cast(name: str, values: Any, dtype: str) -> Any:
    """Return a tensor or an array of another dtype; an integer that this can't hold is an error where it is computed.

    Fractions are cut off, and floats rounded, as TensorFlow does both.
    """
    if isinstance(values, np.ndarray):
        return _exact_array(name, values, np.dtype(dtype))
    import tensorflow as tf

    old, new = values.dtype, tf.as_dtype(dtype)
    if old == new:
        return values
    if not new.is_integer or old == tf.bool:
        return tf.cast(values, new)
    flat = values.flat_values if hasattr(values, "flat_values") else values
    if old.is_integer:
        fits = (flat >= max(old.min, new.min)) & (flat <= min(old.max, new.max))
    else:
        fits = (tf.math.ceil(flat) >= float(new.min)) & (flat < float(new.max + 1))
    return tf.cast(require_all(fits, flat, _does_not_fit(name, old.name, new.name), values), new)


def _exact_array(name: str, values: "np.ndarray[Any, Any]", new: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
    old = values.dtype
    if old == new or new.kind not in "iu" or old.kind == "b":
        return values.astype(new, copy=False)
    limits = np.iinfo(new)
    if old.kind in "iu":
        held = np.iinfo(old)
        fits = (values >= max(int(held.min), int(limits.min))) & (values <= min(int(held.max), int(limits.max)))
    else:
        fits = (np.ceil(values) >= float(limits.min)) & (values < float(int(limits.max) + 1))
    if not fits.all():
        wrong = ", ".join(map(str, values[~fits][:3]))
        raise FeedError(f"{_does_not_fit(name, old.name, new.name)} {wrong}")
    return values.astype(new)


def _does_not_fit(name: str, old: str, new: str) -> str:
    return (
        f"column {name!r} ({old}) has a value that does not fit into {new}, which its input takes: give the model an "
        "input of int64 (on JAX with JAX_ENABLE_X64=1), or change the value in Spark; the first such values:"
    )


_refusals: set[str] = set()  # the errors of `require_all` in this process


@contextmanager
def plain_refusals() -> Iterator[None]:
    """Raise the errors of `require_all` in a block as a `FeedError`, without TensorFlow's words around them."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        text = str(error).replace("\\'", "'")
        message = next((each for each in _refusals if each in text), None)
        if message is None:
            raise
        values = text.partition(message)[2].partition("[")[2].partition("]")[0]
        raise FeedError(f"{message} {', '.join(values.split())}") from None


def require_all(fits: Any, flat: Any, message: str, values: Any) -> Any:
    """Return values whose computation fails, with the first of those that don't fit.

    `fits` is whether each value of `flat` fits; `values` may be ragged.
    """
    import tensorflow as tf

    _refusals.add(message)
    wrong = tf.boolean_mask(flat, ~fits)
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(fits), [message, wrong], summarize=3)]):
        return tf.nest.map_structure(tf.identity, values, expand_composites=True)


def holds_arrays(kind: "DataType") -> bool:
    """Return whether values of a Spark type are arrays, vectors or bytes, so that they can have a shape."""
    from pyspark.sql.types import ArrayType, BinaryType, UserDefinedType

    return isinstance(kind, (ArrayType, BinaryType, UserDefinedType))
