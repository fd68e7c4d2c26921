"""Plans to apply a user's function to blocks of rows, with its inputs and outputs, on the executors."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle

from tensorflowonspark.columns import parse_schema, require_frame
from tensorflowonspark.errors import SpecError
from tensorflowonspark.frames.analysis import Field, fields_of
from tensorflowonspark.frames.python_functions import Form, Plain, probe
from tensorflowonspark.ml.code import WithCode
from tensorflowonspark.ml.distribution import distribute
from tensorflowonspark.ml.features import TakenColumns
from tensorflowonspark.ml.inputs import check_dtypes
from tensorflowonspark.ml.model_bundle import ModelBundle, described
from tensorflowonspark.ml.outputs import spark_type, struct_of
from tensorflowonspark.ml.predict import PredictPlan
from tensorflowonspark.ml.serialization import is_model, serialize_model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType
    from typing_extensions import Unpack

    from tensorflowonspark.keywords import MapKeywords

_WHOLE = 1 << 40  # rows: a block is a whole batch of Spark

_Read = tuple[ModelBundle, Mapping[str, Field], "Mapping[str, DataType]"]  # function, columns by parameter, results


@dataclass(kw_only=True)
class ReduceOptions:
    """What the verbs that reduce take by name. After a change run ``make keywords``.

    Parameters
    ----------
    fill : mapping, optional
        Values that replace nulls, by column. A null in any other column is an error.
    schema : str or StructType, optional
        The results of a plain function, as in ``"y array<float>"``. By default they are inferred from a call with two
        rows of ones.
    """

    fill: Mapping[str, Any] | None = None
    schema: "str | StructType | None" = None


@dataclass(kw_only=True)
class MapOptions(ReduceOptions):
    """What the verbs that map take by name.

    Parameters
    ----------
    feed_dict : mapping, optional
        Columns by parameter, for parameters with another name than their column.
    """

    feed_dict: Mapping[str, str] | None = None


def read(function: Any, frame: "DataFrame", form: Form, **given: "Unpack[MapKeywords]") -> PredictPlan:
    """Return the plan to apply a user's function to blocks of rows; the function is sent to the executors.

    It is a `tf.function`, a concrete function, a Keras model, or a plain function on arrays. Raises SpecError if it
    does not fit the DataFrame or the form.
    """
    options = MapOptions(**given)
    require_frame(frame, "the data")
    read_it = _read_model if is_model(function) else partial(_read_function, schema=options.schema)
    bundle, fields, types = read_it(function, frame, form, options.feed_dict or {})
    shapes = {  # which may vary only for a function of rows
        field.name: (None,) * field.varying + field.shape[field.varying :]
        for field in fields.values()
        if field.shape and (field.is_fixed or form is Form.ROWS)
    }
    parameters = {name: field.name for name, field in fields.items()}
    columns = tuple(dict.fromkeys(parameters.values()))
    taken = TakenColumns(columns, {"shapes": shapes, "fill": options.fill or {}}, parameters)
    return PredictPlan(distribute(frame.sparkSession, bundle), taken, struct_of(types), batch_rows=_WHOLE)


def _read_function(
    function: Any, frame: "DataFrame", form: Form, feed_dict: Mapping[str, str], schema: "str | StructType | None"
) -> _Read:
    parameters = _parameters(function)
    columns = _columns(parameters, frame, form, feed_dict)
    fields = fields_of(frame, list(columns.values()))
    by_parameter = {name: fields[column] for name, column in columns.items()}
    # The parameters of a reduction's block function have the columns' names.
    taken = {field.name: field for field in by_parameter.values()} if form.reduces else by_parameter
    name = next(iter(taken)) if form.reduces and len(taken) == 1 else name_of(function)
    if _is_tensorflow(function):
        from tensorflowonspark.frames.graphs import export

        bundle, outputs = export(function, by_parameter, form, name)
    else:
        plain = Plain(function, form, tuple(by_parameter), name)
        bundle = ModelBundle("function", cloudpickle.dumps(WithCode(plain)))
        outputs = {} if schema is not None else probe(plain, taken)
    if schema is not None:
        types = {each.name: each.dataType for each in parse_schema(schema, frame).fields}
    else:
        types = {name: spark_type(dtype, rank) for name, (dtype, rank) in outputs.items()}
    if form.reduces and set(types) != set(taken):
        raise SpecError(
            f"a reduction's results are reduced again, and so have the names of its columns: it takes {sorted(taken)} "
            f"and returns {sorted(types)}"
        )
    return bundle, taken, types


def _read_model(model: Any, frame: "DataFrame", form: Form, feed_dict: Mapping[str, str]) -> _Read:
    """Read a Keras model, whose result for a row does not depend on other rows."""
    if form.reduces:
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
        name: replace(fields[column], shape=shapes[name] if fields[column].shape else ())
        for name, column in columns.items()
    }
    outputs = [each.tensor for each in bundle.outputs]
    types = {each.name: spark_type(each.dtype, len(each.shape)) for each in outputs}
    return bundle, taken, types


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
            f"{name_of(function)} takes {'*' + loose[0] if loose else 'nothing'}: give it a parameter for each "
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


def name_of(function: Any) -> str:
    """Return the name of a function's unnamed result."""
    own: Callable[..., Any] = getattr(function, "python_function", function)
    name = str(getattr(own, "__name__", type(own).__name__))
    return name if name.isidentifier() else "output"
