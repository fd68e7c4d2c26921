"""Which column goes into which tensor of a SavedModel, and which tensor into which column."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType, UserDefinedType

from tensorflowonspark.columns import check_schema, quoted, select
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.inputs import TensorInfo
from tensorflowonspark.ml.outputs import Columns, OutputInfo, spark_type
from tensorflowonspark.ml.params import check_columns
from tensorflowonspark.ml.predict import TakenColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["fed_columns", "given_columns", "taken_columns"]

_ADVICE = (
    "In a TFModel the shapes are those of the signature's inputs, and nothing stands for a null: make the values fit "
    "in Spark"
)
Given = tuple[tuple[tuple[OutputInfo, ...], Columns], ...]


def fed_columns(frame: "DataFrame", mapping: Mapping[str, str]) -> list[str]:
    """Return the columns of an input mapping, sorted by their names, which is the order in which they are fed.

    Raises
    ------
    SpecError
        If there are none, or the DataFrame lacks one; it lists those that there are.
    """
    if not mapping:
        raise SpecError(
            "input_mapping is empty, so nothing would be fed: say setInputMapping({column: tensor}); the DataFrame has "
            f"the columns {frame.columns}"
        )
    columns = sorted(mapping)
    check_columns(frame, columns)
    return columns


def taken_columns(
    frame: "DataFrame", mapping: Mapping[str, str], inputs: Sequence[TensorInfo]
) -> tuple["DataFrame", TakenColumns]:
    """Return the columns that a signature takes, and what it gets of them.

    Parameters
    ----------
    frame : DataFrame
        Any rows.
    mapping : mapping
        The input tensor of each column.
    inputs : sequence of TensorInfo
        The signature's.

    Raises
    ------
    SpecError
        If the mapping and the signature don't fit each other, or a column and its tensor.
    """
    columns = fed_columns(frame, mapping)
    tensors = _named("input", {column: mapping[column] for column in columns}, [each.name for each in inputs])
    lacking = [each.name for each in inputs if each.name not in tensors.values()]
    if lacking:
        raise SpecError(f"input_mapping has no column for the signature's {_told('input', lacking)}: {dict(mapping)}")
    chosen = select(frame, columns)
    check_schema(chosen.schema)
    by_name, shapes = {each.name: each for each in inputs}, {}
    for column, tensor in tensors.items():
        type_, info = chosen.schema[column].dataType, by_name[tensor]
        _refuse_misfit(column, type_, info)
        if info.is_fixed and (info.shape or _is_array(type_, info)):
            shapes[column] = info.shape
            if isinstance(type_, BinaryType) and info.dtype == "string":
                # A shape of its own would make numbers of its bytes.
                chosen = chosen.withColumn(column, f.array(f.col(quoted(column))))
    parameters = {tensor: column for column, tensor in tensors.items()}
    return chosen, TakenColumns(tuple(columns), {"shapes": shapes}, parameters, _ADVICE)


def given_columns(mapping: Mapping[str, str], outputs: Sequence[OutputInfo]) -> tuple[Given, dict[str, DataType]]:
    """Return the outputs that are wanted, each with its column, and the columns' types; sorted by the tensors' names.

    Raises
    ------
    SpecError
        If there are none, the signature has no such output, or two go into one column.
    """
    by_name = {each.tensor.name: each for each in outputs}
    if not mapping:
        raise SpecError(
            "output_mapping is empty, so nothing would be returned: say setOutputMapping({tensor: column}); the "
            f"signature has the {_told('output', list(by_name))}"
        )
    found = _named("output", {asked: asked for asked in sorted(mapping)}, list(by_name))
    given, types = [], {}
    for asked, tensor in found.items():
        column, output = mapping[asked], by_name[tensor]
        if column in types:
            raise SpecError(f"output_mapping puts two tensors into the column {column!r}: {dict(mapping)}")
        types[column] = spark_type(output.tensor.dtype, len(output.tensor.shape))
        given.append(((output,), Columns(column, "", "")))
    return tuple(given), types


def _named(side: str, asked: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return which tensor of a signature is meant by each that a program of 2.x asks for.

    Keras 2 named a SavedModel's tensors after layers, and Keras 3 names them in other ways. Where there is but one,
    there is no doubt.
    """
    strangers = [name for name in asked.values() if name not in names]
    if len(asked) == len(names) == len(strangers) == 1:
        warnings.warn(
            f"{side}_mapping names the tensor {strangers[0]!r}; it is taken for {names[0]!r}, the signature's only "
            f"{side}",
            UserWarning,
            stacklevel=5,  # the call of transform
        )
        return dict.fromkeys(asked, names[0])
    if strangers:
        raise SpecError(
            f"{side}_mapping names {', '.join(map(repr, strangers))}, and the signature has the {_told(side, names)}"
        )
    double = {name for name in asked.values() if list(asked.values()).count(name) > 1}
    if double:
        raise SpecError(
            f"input_mapping has several columns for one tensor ({', '.join(sorted(double))}): {dict(asked)}"
        )
    return dict(asked)


def _told(side: str, names: Sequence[str]) -> str:
    return f"{side}{'' if len(names) == 1 else 's'} {', '.join(map(repr, sorted(names))) or '(none)'}"


def _is_array(type_: DataType, info: TensorInfo) -> bool:
    """Whether a column's values are several numbers or strings for a tensor."""
    return isinstance(type_, (ArrayType, UserDefinedType)) or (isinstance(type_, BinaryType) and info.dtype != "string")


def _refuse_misfit(column: str, type_: DataType, info: TensorInfo) -> None:
    """Refuse what TensorFlow would complain of in a Spark task, without the column's name."""
    leaf: Any = type_
    depth = int(isinstance(type_, UserDefinedType))
    while isinstance(leaf, ArrayType):
        leaf, depth = leaf.elementType, depth + 1
    tensor = f"the input {info.name!r} is {info.dtype} of shape {info.shape}"
    told = f"column {column!r} has type {type_.simpleString()}, and {tensor}"
    if isinstance(type_, StructType):
        raise SpecError(f"{told}: a tensor has no fields; select those that are wanted as columns of their own")
    is_text = isinstance(leaf, (StringType, BinaryType))
    is_bytes = isinstance(type_, BinaryType) and info.is_fixed  # they are taken as numbers
    if is_text != (info.dtype == "string") and not is_bytes:
        raise SpecError(f"{told}: {'convert the values to numbers' if is_text else 'cast the column to string'}")
    if not info.is_fixed and depth != len(info.shape):
        raise SpecError(f"{told}: its values need the same number of dimensions, since the sizes are not all known")
