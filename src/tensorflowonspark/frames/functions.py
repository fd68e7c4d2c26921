"""Conversion of a user's function to a block function, with its inputs and outputs, for the executors."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import cloudpickle

from tensorflowonspark.columns import parse_schema, require_frame
from tensorflowonspark.errors import SpecError
from tensorflowonspark.frames.analysis import Field, fields_of
from tensorflowonspark.frames.plain import Plain, probe
from tensorflowonspark.ml.code import WithCode
from tensorflowonspark.ml.inputs import check_dtypes
from tensorflowonspark.ml.model_bundle import ModelBundle, described
from tensorflowonspark.ml.outputs import spark_type, struct_of
from tensorflowonspark.ml.serialization import is_model, serialize_model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class Form(Enum):
    """The inputs and outputs of a user's function."""

    BLOCKS = "blocks"  # arrays of some rows to arrays of as many rows
    ROWS = "rows"  # one row's values to one row's values
    REDUCED_BLOCKS = "reduced blocks"  # arrays of some rows to one row's values
    REDUCED_ROWS = "reduced rows"  # the values of two rows to those of one


@dataclass(frozen=True)
class BlockFunction:
    """A function of blocks.

    Attributes
    ----------
    bundle : ModelBundle
        The serialized function for the executors.
    fields : mapping
        Its columns, by parameter.
    types : tuple
        The names and Spark types of its results.
    """

    bundle: ModelBundle
    fields: Mapping[str, Field]
    types: "StructType"


def read(
    function: Any,
    frame: "DataFrame",
    form: Form,
    feed_dict: Mapping[str, str] | None = None,
    schema: "str | StructType | None" = None,
) -> BlockFunction:
    """Return the block function of a user's function.

    Parameters
    ----------
    function : object
        A `tf.function`, a concrete function, a Keras model, or a plain function on arrays.
    frame : DataFrame
        The rows.
    form : Form
        The inputs and outputs of the function.
    feed_dict : mapping, optional
        Columns by parameter, for parameters with another name than their column.
    schema : str or StructType, optional
        The results of a plain function. By default they are inferred from a call with two rows of ones.

    Returns
    -------
    BlockFunction
        The function for the executors.

    Raises
    ------
    SpecError
        If the function does not fit the DataFrame or the form.
    """
    require_frame(frame, "the data")
    if is_model(function):
        return _of_model(function, frame, form, feed_dict or {})
    parameters = _parameters(function)
    columns = _columns(parameters, frame, form, feed_dict or {})
    fields = fields_of(frame, list(columns.values()))
    by_parameter = {name: fields[column] for name, column in columns.items()}
    taken = _taken(by_parameter, form)
    if _is_tensorflow(function):
        from tensorflowonspark.frames.graphs import export

        bundle, outputs = export(function, by_parameter, form.value, default_name(function, form, taken))
    else:
        plain = Plain(function, form.value, tuple(by_parameter), default_name(function, form, taken))
        bundle = ModelBundle("function", cloudpickle.dumps(WithCode(plain)))
        outputs = {} if schema is not None else probe(plain, taken)
    if schema is not None:
        types = {each.name: each.dataType for each in parse_schema(schema, frame).fields}
    else:
        types = {name: spark_type(dtype, rank) for name, (dtype, rank) in outputs.items()}
    _check_reduced(form, taken, list(types))
    return BlockFunction(bundle, taken, struct_of(types))


def _of_model(model: Any, frame: "DataFrame", form: Form, feed_dict: Mapping[str, str]) -> BlockFunction:
    """Return the block function of a Keras model, whose result for a row does not depend on other rows."""
    if form not in (Form.BLOCKS, Form.ROWS):
        raise SpecError("a Keras model returns a row for each row: it can map, but not reduce")
    bundle = described(serialize_model(model), model)
    if not bundle.inputs:
        raise SpecError("the Keras model has no inputs yet: build it, or start it with a keras.Input")
    names = [each.name for each in bundle.inputs]
    columns = {name: feed_dict.get(name, name) for name in names}
    if len(names) == 1 and columns[names[0]] not in frame.columns and len(frame.columns) == 1:
        columns = {names[0]: frame.columns[0]}
    fields = fields_of(frame, list(columns.values()))
    for each in bundle.inputs:
        column = columns[each.name]
        if not (each.is_fixed and frame.schema[column].dataType.simpleString() == "binary"):  # a shape decodes bytes
            check_dtypes([each], {column: fields[column].dtype})
    # The inputs' shapes are declared for the columns, whose errors name the row, unlike those of the model.
    shapes = {
        each.name: each.shape if each.is_fixed and each.dtype != "string" else fields[columns[each.name]].shape
        for each in bundle.inputs
    }
    taken = {
        name: Field(column, fields[column].dtype, shapes[name] if fields[column].shape else (), fields[column].is_text)
        for name, column in columns.items()
    }
    outputs = [each.tensor for each in bundle.outputs]
    types = {each.name: spark_type(each.dtype, len(each.shape)) for each in outputs}
    return BlockFunction(bundle, taken, struct_of(types))


def _is_tensorflow(function: Any) -> bool:
    return hasattr(function, "get_concrete_function") or hasattr(function, "structured_input_signature")


def _parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters."""
    if hasattr(function, "structured_input_signature"):
        positional, named = function.structured_input_signature
        return [each.name for each in positional] + list(named)
    if not callable(function):
        raise SpecError(f"{function!r}: expected a tf.function, a Keras model or a plain function on arrays")
    parameters = inspect.signature(getattr(function, "python_function", function)).parameters.values()
    loose = [each.name for each in parameters if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    if loose or not parameters:
        raise SpecError(
            f"{default_name(function)} takes {'*' + loose[0] if loose else 'nothing'}: give it a parameter for each "
            "column, of the column's name"
        )
    return [each.name for each in parameters if each.default is each.empty]


def _columns(parameters: list[str], frame: "DataFrame", form: Form, feed_dict: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each parameter."""
    unknown = [name for name in feed_dict if name not in parameters]
    if unknown:
        raise SpecError(f"feed_dict names the parameter {unknown[0]!r}, and the function takes {parameters}")
    if form is Form.REDUCED_ROWS:
        return {name: _base_of_pair(name, parameters) for name in parameters}
    columns = {name: feed_dict.get(name, name) for name in parameters}
    if form is Form.REDUCED_BLOCKS:
        named = {name: name if name in frame.columns else name.removesuffix("_input") for name in parameters}
        columns = {**named, **feed_dict}
    return columns


def _base_of_pair(name: str, parameters: list[str]) -> str:
    base = name[:-2]
    if name[-2:] not in ("_1", "_2") or {f"{base}_1", f"{base}_2"} - set(parameters):
        raise SpecError(
            f"reduce_rows: a function of two rows takes each column twice, as in f(x_1, x_2) for column 'x'; this one "
            f"takes {parameters}"
        )
    return base


def _taken(by_parameter: Mapping[str, Field], form: Form) -> dict[str, Field]:
    """Return the columns by parameter of the block function; in reductions these have the columns' names."""
    if form in (Form.BLOCKS, Form.ROWS):
        return dict(by_parameter)
    return {field.name: field for field in by_parameter.values()}


def default_name(function: Any, form: Form | None = None, taken: Mapping[str, Field] | None = None) -> str:
    """Return the name of an unnamed result."""
    if form in (Form.REDUCED_BLOCKS, Form.REDUCED_ROWS) and taken and len(taken) == 1:
        return next(iter(taken))
    own: Callable[..., Any] = getattr(function, "python_function", function)
    name = str(getattr(own, "__name__", type(own).__name__))
    return name if name.isidentifier() else "output"


def _check_reduced(form: Form, taken: Mapping[str, Field], results: list[str]) -> None:
    """Raise a SpecError if the results of a reduction can't be reduced again."""
    if form in (Form.REDUCED_BLOCKS, Form.REDUCED_ROWS) and set(results) != set(taken):
        raise SpecError(
            f"a reduction's results are reduced again, and so have the names of its columns: it takes {sorted(taken)} "
            f"and returns {sorted(results)}"
        )
