"""Planning of ``KerasModel.transform`` in the driver, which checks columns, shapes and dtypes before a Spark job."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, BinaryType, UserDefinedType

from tensorflowonspark.columns import arrow_type, check_schema, natural_type
from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.distribution import distribute
from tensorflowonspark.ml.inputs import check_dtypes, column_shapes
from tensorflowonspark.ml.model_bundle import ModelBundle
from tensorflowonspark.ml.outputs import Columns, OutputInfo, result_types
from tensorflowonspark.ml.params import check_columns
from tensorflowonspark.ml.predict import PredictPlan, TakenColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["holds_arrays", "output_groups", "plan_transform"]

_ADVICE = "To skip such rows, or keep them with null results: handleInvalid='skip' or 'keep'"


def plan_transform(  # noqa: PLR0913 - one for each property of a stage
    frame: "DataFrame",
    bundle: ModelBundle,
    features: Sequence[str],
    *,
    results: Columns,
    layers: tuple[str, ...],
    by_column: Mapping[str, Mapping[str, Any]],
    custom_objects: Mapping[str, Any],
    batch_rows: int | None,
    invalid: str,
) -> PredictPlan:
    """Return the plan of a model's application to a DataFrame, and send the model to the executors.

    Parameters
    ----------
    frame : DataFrame
        The rows.
    bundle : ModelBundle
        The model.
    features : sequence of str
        The feature columns.
    results : Columns
        The result columns of the model's own outputs.
    layers : tuple of str
        Layers whose outputs become columns instead; none for the model's own outputs.
    by_column : mapping
        The mappings ``shapes``, ``dtypes`` and ``fill`` by column.
    custom_objects : mapping
        The user's classes and functions by name.
    batch_rows : int or None
        Rows per call of the model, at most.
    invalid : str
        Handling of rows that the model can't take: ``error``, ``keep`` or ``skip``.

    Raises
    ------
    SpecError
        If a column is missing, exists already, or can't be an input of the model.
    """
    check_columns(frame, features)
    check_schema(type(frame.schema)([frame.schema[name] for name in features]))
    outputs = output_groups(bundle, results, layers)
    types: dict[str, DataType] = {}
    for group, columns in outputs:
        types.update(result_types(group, columns))
    existing = [name for name in types if name in frame.columns]
    if existing:
        raise SpecError(f"the DataFrame has a column {existing[0]!r} already: drop it, or set another predictionCol")
    arrays = [name for name in features if holds_arrays(frame.schema[name].dataType)]
    shapes = column_shapes(bundle.inputs, features, arrays, by_column["shapes"])
    check_dtypes(bundle.inputs, _dtypes(frame, features, shapes))
    return PredictPlan(
        model=distribute(frame.sparkSession, bundle, layers, custom_objects),
        taken=TakenColumns(tuple(features), {**by_column, "shapes": shapes}, advice=_ADVICE),
        outputs=outputs,
        types=tuple(types.items()),
        batch_rows=batch_rows,
        invalid=invalid,
    )


def output_groups(
    bundle: ModelBundle, results: Columns, layers: tuple[str, ...]
) -> tuple[tuple[tuple[OutputInfo, ...], Columns], ...]:
    """Return the outputs in groups, each with its result columns."""
    if not layers:
        return ((bundle.outputs, results),)
    return tuple(((OutputInfo(bundle.layers[name]),), Columns(name, "", "")) for name in layers)


def _dtypes(frame: "DataFrame", features: Sequence[str], shapes: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtype of each feature column, as `check_dtypes` takes them."""
    dtypes = {}
    for name in features:
        dtype, _, text = natural_type(name, arrow_type(frame.schema[name].dataType))
        # The bytes of a column with a shape are numbers.
        dtypes[name] = "string" if text or (dtype.kind == "O" and name not in shapes) else dtype.name
    return dtypes


def holds_arrays(kind: "DataType") -> bool:
    """Return whether values of a type are arrays, vectors or bytes, so that they can have a shape."""
    return isinstance(kind, (ArrayType, BinaryType, UserDefinedType))
