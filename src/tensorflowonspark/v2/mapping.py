"""Mappings between columns and the tensors of a SavedModel."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType, UserDefinedType

from tensorflowonspark.columns import check_schema, quoted, require_frame, select
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.ml.features import TakenColumns
from tensorflowonspark.ml.outputs import Columns, OutputGroups, OutputInfo, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ADVICE = (
    "In a TFModel the shapes are those of the signature's inputs, and nothing replaces a null: make the values fit in "
    "Spark"
)


def fed_columns(frame: "DataFrame", mapping: Mapping[str, str]) -> list[str]:
    """Return the columns of an input mapping in the order in which they are fed: sorted by name.

    Raises
    ------
    SpecError
        If the mapping is empty, or the DataFrame lacks a column; it lists the existing ones.
    """
    require_frame(frame, "the data")
    if not mapping:
        raise SpecError(
            "input_mapping is empty, so nothing would be fed: call setInputMapping({column: tensor}); the DataFrame "
            f"has the columns {frame.columns}"
        )
    columns = sorted(mapping)
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise SpecError(
            f"input_mapping names the column {', '.join(map(repr, missing))}, and the DataFrame has {frame.columns}: "
            "its keys are columns, and its values tensors"
        )
    return columns


def input_columns(
    frame: "DataFrame", mapping: Mapping[str, str], inputs: Sequence[TensorInfo]
) -> tuple["DataFrame", TakenColumns]:
    """Return a DataFrame of the columns for a signature's inputs, and their conversion to tensors.

    Parameters
    ----------
    frame : DataFrame
        The rows.
    mapping : mapping
        Input tensors by column.
    inputs : sequence of TensorInfo
        The inputs of the signature.

    Raises
    ------
    SpecError
        If the mapping does not match the signature, or a column its tensor.
    """
    columns = fed_columns(frame, mapping)
    tensors = _tensor_names("input", {column: mapping[column] for column in columns}, [each.name for each in inputs])
    lacking = [each.name for each in inputs if each.name not in tensors.values()]
    if lacking:
        raise SpecError(f"input_mapping has no column for the signature's {_listed('input', lacking)}: {dict(mapping)}")
    chosen = select(frame, columns)
    check_schema(chosen.schema)
    by_name, shapes = {each.name: each for each in inputs}, {}
    for column, tensor in tensors.items():
        type_, info = chosen.schema[column].dataType, by_name[tensor]
        _require_match(column, type_, info)
        if info.is_fixed and (info.shape or _is_array(type_, info)):
            shapes[column] = info.shape
            if isinstance(type_, BinaryType) and info.dtype == "string":
                # Given a shape, the bytes would be read as numbers.
                chosen = chosen.withColumn(column, f.array(f.col(quoted(column))))
    parameters = {tensor: column for column, tensor in tensors.items()}
    return chosen, TakenColumns(tuple(columns), {"shapes": shapes}, parameters, _ADVICE)


def output_columns(
    mapping: Mapping[str, str], outputs: Sequence[OutputInfo]
) -> tuple[OutputGroups, dict[str, DataType]]:
    """Return the outputs of a mapping with their columns, and the columns' types; sorted by tensor name.

    Raises
    ------
    SpecError
        If the mapping is empty, the signature lacks an output, or two outputs have one column.
    """
    by_name = {each.tensor.name: each for each in outputs}
    if not mapping:
        raise SpecError(
            "output_mapping is empty, so nothing would be returned: call setOutputMapping({tensor: column}); the "
            f"signature has the {_listed('output', list(by_name))}"
        )
    found = _tensor_names("output", {asked: asked for asked in sorted(mapping)}, list(by_name))
    given, types = [], {}
    for asked, tensor in found.items():
        column, output = mapping[asked], by_name[tensor]
        if column in types:
            raise SpecError(f"output_mapping puts two tensors into the column {column!r}: {dict(mapping)}")
        types[column] = spark_type(output.tensor.dtype, len(output.tensor.shape))
        given.append(((output,), Columns(column, "", "")))
    return tuple(given), types


def _tensor_names(side: str, asked: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the tensor of a signature for each tensor that a program of 2.x names.

    Keras 2 names a SavedModel's tensors after layers, Keras 3 differently. A signature's only tensor matches any name.
    """
    unknown = [name for name in asked.values() if name not in names]
    if len(asked) == len(names) == len(unknown) == 1:
        warnings.warn(
            f"{side}_mapping names the tensor {unknown[0]!r}; it is taken for {names[0]!r}, the signature's only "
            f"{side}",
            UserWarning,
            stacklevel=5,  # the call of transform
        )
        return dict.fromkeys(asked, names[0])
    if unknown:
        raise SpecError(
            f"{side}_mapping names {', '.join(map(repr, unknown))}, and the signature has the {_listed(side, names)}"
        )
    repeated = {name for name in asked.values() if list(asked.values()).count(name) > 1}
    if repeated:
        raise SpecError(
            f"input_mapping has several columns for one tensor ({', '.join(sorted(repeated))}): {dict(asked)}"
        )
    return dict(asked)


def _listed(side: str, names: Sequence[str]) -> str:
    return f"{side}{'' if len(names) == 1 else 's'} {', '.join(map(repr, sorted(names))) or '(none)'}"


def _is_array(type_: DataType, info: TensorInfo) -> bool:
    """Return whether a value of a column is several numbers or strings of a tensor."""
    return isinstance(type_, (ArrayType, UserDefinedType)) or (isinstance(type_, BinaryType) and info.dtype != "string")


def _require_match(column: str, type_: DataType, info: TensorInfo) -> None:
    """Raise `SpecError` for a column that TensorFlow would reject in a Spark task without naming it."""
    leaf: Any = type_
    depth = int(isinstance(type_, UserDefinedType))
    while isinstance(leaf, ArrayType):
        leaf, depth = leaf.elementType, depth + 1
    tensor = f"the input {info.name!r} is {info.dtype} of shape {info.shape}"
    conflict = f"column {column!r} has type {type_.simpleString()}, and {tensor}"
    if isinstance(type_, StructType):
        raise SpecError(f"{conflict}: a tensor has no fields; select those that are wanted as separate columns")
    is_text = isinstance(leaf, (StringType, BinaryType))
    is_bytes = isinstance(type_, BinaryType) and info.is_fixed  # read as numbers
    if is_text != (info.dtype == "string") and not is_bytes:
        raise SpecError(f"{conflict}: {'convert the values to numbers' if is_text else 'cast the column to string'}")
    if not info.is_fixed and depth != len(info.shape):
        raise SpecError(f"{conflict}: its values need the same number of dimensions, since the sizes are not all known")
