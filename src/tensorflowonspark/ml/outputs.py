"""Conversion of a model's outputs to result columns, by Spark ML's conventions.

A classifier gives ``rawPrediction`` (the network's own output), ``probability`` (vectors) and ``prediction`` (the class
as a double); any other model gives ``prediction``: a double for one number (a bigint if it is an integer of 64 bits,
which a double can't hold), an array for more, a struct for a model with several outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.structure import TensorInfo

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

Numbers = npt.NDArray[Any]
_NO_DOUBLES = ("str", "string", "int64", "uint64")  # dtypes with values that a double can't hold


class Meaning(Enum):
    """The meaning of an output's numbers."""

    CLASSES = "classes"  # one number for each class
    BINARY = "binary"  # one number, for the second of two classes
    VALUES = "values"  # plain numbers


@dataclass(frozen=True)
class OutputInfo:
    """An output of a model, with the meaning of its numbers."""

    tensor: TensorInfo
    meaning: Meaning = Meaning.VALUES
    logits: bool = False  # not probabilities
    thresholds: tuple[float, ...] = ()  # of the classes; none if the most probable class is predicted

    @property
    def classes(self) -> int:
        """The number of classes; 0 for plain numbers."""
        if self.meaning is Meaning.CLASSES:
            return self.tensor.shape[-1] or 0
        return 2 if self.meaning is Meaning.BINARY else 0


@dataclass(frozen=True)
class Columns:
    """The names of the result columns; one with an empty name is left out, as in Spark ML."""

    prediction: str = "prediction"
    probability: str = "probability"
    raw: str = "rawPrediction"


OutputGroups = tuple[tuple[tuple[OutputInfo, ...], Columns], ...]  # outputs in groups, each with its result columns


def meaning_of(loss: Any, activation: str, tensor: TensorInfo) -> tuple[Meaning, bool]:
    """Return an output's meaning, and whether it is logits, from its loss, or else from its activation.

    Examples
    --------
    >>> meaning_of("sparse_categorical_crossentropy", "softmax", TensorInfo("y", (10,), "float32"))
    (<Meaning.CLASSES: 'classes'>, False)
    >>> meaning_of("categorical_hinge", "linear", TensorInfo("y", (10,), "float32"))  # of scores, not of probabilities
    (<Meaning.VALUES: 'values'>, False)
    """
    name = _loss_name(loss).lower().replace("_", "")
    size = tensor.shape[-1] if len(tensor.shape) == 1 else None
    if "categorical" in name and "crossentropy" in name and size:
        return Meaning.CLASSES, _from_logits(loss, activation, "softmax")
    if (name == "bce" or ("binary" in name and "crossentropy" in name)) and size == 1:
        return Meaning.BINARY, _from_logits(loss, activation, "sigmoid")
    if (not name or "categorical" in name) and activation == "softmax" and size:
        return Meaning.CLASSES, False
    if (not name or "binary" in name) and activation == "sigmoid" and size == 1:
        return Meaning.BINARY, False
    return Meaning.VALUES, False


def _loss_name(loss: Any) -> str:
    if loss is None or isinstance(loss, str):
        return loss or ""
    return str(getattr(loss, "name", None) or getattr(loss, "__name__", "") or type(loss).__name__)


def _from_logits(loss: Any, activation: str, expected: str) -> bool:
    configuration = loss.get_config() if hasattr(loss, "get_config") else {}
    return bool(configuration.get("from_logits", False)) and activation != expected


def result_types(outputs: Sequence[OutputInfo], columns: Columns) -> dict[str, "DataType"]:
    """Return the Spark types of the result columns, by name."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import StructType

    classified = [each for each in outputs if each.meaning is not Meaning.VALUES]
    by_column = {
        columns.raw: {each.tensor.name: VectorUDT() for each in classified},
        columns.probability: {each.tensor.name: VectorUDT() for each in classified},
        columns.prediction: {each.tensor.name: _prediction_type(each) for each in outputs},
    }
    types: dict[str, DataType] = {}
    for name, by_output in by_column.items():
        if name and by_output:
            if len(outputs) == 1:
                (types[name],) = by_output.values()
            else:
                types[name] = StructType()
                for output, type_ in by_output.items():
                    types[name].add(output, type_)
    if not types:
        raise SpecError("no result column has a name: set predictionCol")
    return types


def struct_of(types: "Mapping[str, DataType]") -> "StructType":
    """Return the schema of columns of these types."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, kind) for name, kind in types.items()])


def _prediction_type(output: OutputInfo) -> "DataType":
    from pyspark.sql.types import DoubleType

    is_one = output.tensor.shape in ((), (1,))
    if output.meaning is not Meaning.VALUES or (is_one and output.tensor.dtype not in _NO_DOUBLES):
        return DoubleType()
    return spark_type(output.tensor.dtype, 0 if is_one else len(output.tensor.shape))


def with_thresholds(outputs: Sequence[OutputInfo], thresholds: Sequence[float]) -> tuple[OutputInfo, ...]:
    """Return a model's outputs with the thresholds of its classes.

    Raises SpecError if the model has no classes, or another number of them.

    Examples
    --------
    >>> with_thresholds([OutputInfo(TensorInfo("y", (3,), "float32"), Meaning.CLASSES)], [0.5, 0.5])
    Traceback (most recent call last):
    tensorflowonspark.errors.SpecError: thresholds=[0.5, 0.5]: expected 3 numbers, one for each class of the model
    """
    classified = classifier_of(outputs, f"thresholds={list(thresholds)}")
    if len(thresholds) != classified.classes:
        raise SpecError(
            f"thresholds={list(thresholds)}: expected {classified.classes} numbers, one for each class of the model"
        )
    return tuple(replace(each, thresholds=tuple(thresholds)) if each is classified else each for each in outputs)


def classifier_of(outputs: Sequence[OutputInfo], asked: str) -> OutputInfo:
    """Return the output of a model that has classes; `asked` is what needs it, for the error.

    Raises SpecError if no output has classes, or several have.
    """
    found = [each for each in outputs if each.classes]
    if len(found) != 1:
        raise SpecError(
            f"{asked} needs a model with one output of classes, and this one has {len(found)}. An output has classes "
            "by a loss of probabilities (a cross-entropy), or by the activation of its layer (softmax, sigmoid)"
        )
    return found[0]


def spark_type(dtype: str, rank: int) -> "DataType":
    """Return the Spark type of values with a dtype and a number of dimensions.

    Examples
    --------
    >>> spark_type("float32", 2).simpleString()
    'array<array<float>>'
    """
    from pyspark.sql.types import ArrayType

    type_ = _leaf_type(dtype)
    for _ in range(rank):
        type_ = ArrayType(type_)
    return type_


def _leaf_type(dtype: str) -> "DataType":
    from pyspark.sql import types

    leaves: dict[str, DataType] = {
        "bool": types.BooleanType(),
        "double": types.DoubleType(),
        "float64": types.DoubleType(),
        "int8": types.ByteType(),
        "int16": types.ShortType(),
        "int32": types.IntegerType(),
        "int64": types.LongType(),
        "uint8": types.ShortType(),
        "uint16": types.IntegerType(),
        "uint32": types.LongType(),
        "uint64": types.LongType(),
        "str": types.StringType(),
        "string": types.BinaryType(),
    }
    return leaves.get(dtype, types.FloatType())


def result_values(outputs: Sequence[OutputInfo], columns: Columns, values: Mapping[str, Numbers]) -> dict[str, Any]:
    """Return an array for each result column, or a dict of arrays by output if the model has several.

    The values are the arrays that the model returned, of shape ``(rows, *shape)``, by output.
    """
    results: dict[str, dict[str, Any]] = {name: {} for name in (columns.raw, columns.probability, columns.prediction)}
    for output in outputs:
        name, received = output.tensor.name, values[output.tensor.name]
        if output.meaning is Meaning.VALUES:
            results[columns.prediction][name] = received
            continue
        raw = _both(received, output.logits) if output.meaning is Meaning.BINARY else received
        results[columns.raw][name] = raw
        results[columns.probability][name] = probabilities = _probabilities(raw, output)
        scores = _scaled(probabilities, output.thresholds) if output.thresholds else raw
        results[columns.prediction][name] = np.argmax(scores, axis=-1).astype(np.float64)
    single = len(outputs) == 1
    return {name: next(iter(by.values())) if single else by for name, by in results.items() if name and by}


def _scaled(probabilities: Numbers, thresholds: Sequence[float]) -> Numbers:
    """Return probabilities divided by thresholds, in Spark ML's way: a class of probability 0 is never predicted."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(probabilities > 0, probabilities / np.asarray(thresholds), -1.0)


def _both(second: Numbers, logits: bool) -> Numbers:
    """Return a column for each of two classes, from the network's one number for the second."""
    second = second.reshape(-1, 1).astype(np.float64)
    return np.concatenate([-second if logits else 1 - second, second], axis=1)


def _probabilities(raw: Numbers, output: OutputInfo) -> Numbers:
    if not output.logits:
        return raw
    if output.meaning is Meaning.BINARY:
        # The network's one logit is the logarithm of the odds.
        return _both(1 / (1 + np.exp(-raw[:, 1])), logits=False)
    powers = np.exp(raw - raw.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]
