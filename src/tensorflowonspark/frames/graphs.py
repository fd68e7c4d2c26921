"""Block functions of TensorFlow functions, traced for the columns' types and exported as SavedModels."""

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tensorflowonspark.errors import SpecError
from tensorflowonspark.frames.analysis import Field
from tensorflowonspark.frames.python_functions import Form, named
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.ml.inputs import exact_cast
from tensorflowonspark.ml.model_bundle import ModelBundle, zipped

Tensors = Mapping[str, Any]
Block = Callable[..., dict[str, Any]]


def export(
    function: Any, fields: Mapping[str, Field], form: Form, default: str
) -> tuple[ModelBundle, dict[str, tuple[str, int]]]:
    """Return the exported block function, a SavedModel, and the dtype and rank of each result for one row.

    The fields are the columns by parameter; `default` is the name of an unnamed result. Raises SpecError if the
    function can't be traced for the columns, or can't be exported.
    """
    own_types = _own_types(function)

    def call(**values: Any) -> dict[str, Any]:
        cast = {name: _cast(name, value, own_types.get(name)) for name, value in values.items()}
        return named(function(**cast), default)

    try:
        block, specs = _MAKERS[form](call, fields)
        traced = tf.function(block)
        concrete = traced.get_concrete_function(**specs)
    except SpecError:
        raise
    except Exception as error:
        columns = ", ".join(f"{name}: {field}" for name, field in fields.items())
        raise SpecError(
            f"{default} can't be traced for the columns ({columns}; ? is an unknown length, which analyze(df) "
            f"measures): {type(error).__name__}: {str(error).strip()}"
        ) from error
    rows = 0 if form.reduces else 1
    outputs = {name: (each.dtype.name, _rank(name, each) - rows) for name, each in concrete.structured_outputs.items()}
    data = _saved(traced, concrete, function)
    inputs = tuple(TensorInfo(name, (), spec.dtype.name) for name, spec in specs.items())
    return ModelBundle("saved_model", data, inputs), outputs


def _own_types(function: Any) -> dict[str, tf.DType]:
    """Return the dtypes that a function declares."""
    signature = getattr(function, "structured_input_signature", None)
    if signature is not None:
        positional, by_name = signature
        return {each.name: each.dtype for each in positional} | {name: each.dtype for name, each in by_name.items()}
    declared = getattr(function, "input_signature", None)
    if not declared:
        return {}
    names = list(function.function_spec.arg_names) if hasattr(function, "function_spec") else []
    return {name: each.dtype for name, each in zip(names, declared, strict=False) if hasattr(each, "dtype")}


def _cast(name: str, value: Any, wanted: tf.DType | None) -> Any:
    if wanted is None or value.dtype == wanted:
        return value
    if tf.string in (value.dtype, wanted):
        raise SpecError(
            f"the function's {name!r} takes {wanted.name}, and the column holds {value.dtype.name}: cast it in Spark"
        )
    return exact_cast(name, value, wanted.name)


def _row_spec(field: Field) -> tf.TensorSpec:
    return tf.TensorSpec(field.shape, field.dtype)


def _block_spec(field: Field) -> tf.TensorSpec:
    return tf.TensorSpec([None, *field.shape], field.dtype)


def _blocks(call: Block, fields: Mapping[str, Field]) -> tuple[Block, dict[str, Any]]:
    return call, {name: _block_spec(field) for name, field in fields.items()}


def _reduced_blocks(call: Block, fields: Mapping[str, Field]) -> tuple[Block, dict[str, Any]]:
    def block(**columns: Any) -> dict[str, Any]:
        return call(**{name: columns[field.name] for name, field in fields.items()})

    by_column = {field.name: field for field in fields.values()}
    specs = {name: _block_spec(field) for name, field in by_column.items()}
    _check_closed(tf.function(block).get_concrete_function(**specs).structured_outputs, by_column)
    return block, specs


def _rows(call: Block, fields: Mapping[str, Field]) -> tuple[Block, dict[str, Any]]:
    """Return the block function of a function of one row, vectorized if all rows have one shape."""
    row_specs = {name: _of_row(field) for name, field in fields.items()}
    results = tf.function(call).get_concrete_function(**row_specs).structured_outputs
    fixed = all(field.is_fixed for field in fields.values())
    if fixed and all(each.shape.is_fully_defined() for each in results.values()):

        def vectorized(**columns: Any) -> dict[str, Any]:
            found: dict[str, Any] = tf.vectorized_map(lambda row: call(**row), columns, warn=False)
            return found

        return vectorized, {name: _block_spec(field) for name, field in fields.items()}

    signature = {name: _stacked(name, each) for name, each in results.items()}

    def row_by_row(**columns: Any) -> dict[str, Any]:
        found: dict[str, Any] = tf.map_fn(
            lambda row: _fitting(call(**row), signature), columns, fn_output_signature=signature
        )
        return found

    return row_by_row, {name: _of_rows(field) for name, field in fields.items()}


def _of_row(field: Field) -> Any:
    """Return the spec of one row's value, ragged if it varies in several dimensions."""
    varying = field.varying
    if varying <= 1:  # a dense array
        return _row_spec(field)
    return tf.RaggedTensorSpec([None] * varying + list(field.shape[varying:]), field.dtype, varying - 1, tf.int64)


def _of_rows(field: Field) -> Any:
    varying = field.varying
    if not varying:
        return _block_spec(field)
    return tf.RaggedTensorSpec([None] * (varying + 1) + list(field.shape[varying:]), field.dtype, varying, tf.int64)


def _stacked(name: str, spec: Any) -> Any:
    """Return the spec of a result in the stacked rows, ragged if rows differ in length."""
    if not _rank(name, spec):
        return tf.TensorSpec((), spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec) or not spec.shape.is_fully_defined():
        sizes = [None if size is None else int(size) for size in spec.shape]
        varying = max(at for at, size in enumerate(sizes) if size is None) + 1
        return tf.RaggedTensorSpec([None] * varying + sizes[varying:], spec.dtype, varying - 1, tf.int64)
    return tf.TensorSpec(spec.shape, spec.dtype)


def _fitting(results: Tensors, signature: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's results as the tensors of the signature, ragged or dense."""
    return {
        name: tf.RaggedTensor.from_tensor(value, ragged_rank=signature[name].ragged_rank, row_splits_dtype=tf.int64)
        if isinstance(value, tf.Tensor) and hasattr(signature[name], "ragged_rank") and signature[name].ragged_rank
        else value
        for name, value in results.items()
    }


def _reduced_rows(call: Callable[..., Any], fields: Mapping[str, Field]) -> tuple[Block, dict[str, Any]]:
    """Return the block function of a function of two rows: it halves the rows, all pairs at once, until one is left."""
    by_column = {field.name: field for field in fields.values()}
    specs = {name: _row_spec(field) for name, field in by_column.items()}
    pair = {name: specs[field.name] for name, field in fields.items()}
    _check_closed(tf.function(call).get_concrete_function(**pair).structured_outputs, by_column)

    def halved(columns: dict[str, Any]) -> tuple[dict[str, Any]]:
        even = tf.shape(next(iter(columns.values())))[0] // 2 * 2
        pairs = {f"{name}_1": column[:even:2] for name, column in columns.items()}
        pairs |= {f"{name}_2": column[1:even:2] for name, column in columns.items()}
        merged = tf.vectorized_map(lambda row: call(**row), pairs, warn=False)
        return ({name: tf.concat([merged[name], column[even:]], 0) for name, column in columns.items()},)

    def block(**columns: Any) -> dict[str, Any]:
        invariants = {name: tf.TensorShape([None, *field.shape]) for name, field in by_column.items()}
        (last,) = tf.while_loop(
            lambda rows: tf.shape(next(iter(rows.values())))[0] > 1, halved, (columns,), (invariants,)
        )
        return {name: column[0] for name, column in last.items()}

    return block, {name: _block_spec(field) for name, field in by_column.items()}


_MAKERS = {
    Form.BLOCKS: _blocks,
    Form.ROWS: _rows,
    Form.REDUCED_BLOCKS: _reduced_blocks,
    Form.REDUCED_ROWS: _reduced_rows,
}


def _check_closed(results: Tensors, by_column: Mapping[str, Field]) -> None:
    """Raise a SpecError if a result of a reduction, which is reduced again, has another dtype than its column."""
    for name, field in by_column.items():
        if name in results and results[name].dtype != tf.as_dtype(field.dtype):
            raise SpecError(
                f"column {name!r} is {field.dtype}, and the function reduces it to {results[name].dtype.name}: results "
                "are reduced again, so cast the column first (df.withColumn), or the result back"
            )


def _rank(name: str, output: Any) -> int:
    if output.shape.rank is None:
        raise SpecError(f"result {name!r} has no known number of dimensions: give it one, as with tf.ensure_shape")
    return int(output.shape.rank)


def _owner(function: Any) -> Any:
    """Return the object of a method, whose variables and tables must be saved with it, or None."""
    own = getattr(function, "python_function", None)
    owner = getattr(getattr(own, "__original_wrapped__", getattr(own, "__wrapped__", own)), "__self__", None)
    return getattr(owner, "target", owner)  # TensorFlow wraps the object of a method


def _saved(traced: Any, concrete: Any, function: Any) -> bytes:
    """Return the SavedModel of a traced function, with its variables."""
    module = tf.Module()
    module.function = traced
    module.kept = [list(concrete.variables), _owner(function)]
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        try:
            tf.saved_model.save(module, scratch)
        except (AssertionError, KeyError, ValueError) as error:
            raise SpecError(
                f"TensorFlow can't export the function: {str(error).splitlines()[0]}. Tables and other resources must "
                "belong to a tf.Module or a Keras model of which the function is a method"
            ) from error
        return zipped(scratch)
