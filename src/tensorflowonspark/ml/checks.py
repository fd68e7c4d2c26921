"""Checks of the columns against the model that they are to train: widths of features, and labels by loss and units.

What is known of the columns' types is checked before a cluster starts, and the rest on the nodes before the first step.
The values of labels are checked as they arrive.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.structure import TensorInfo, output_paths, outputs_of
from tensorflowonspark.ml.inputs import are_in_order, input_of_each, require_all
from tensorflowonspark.ml.model_bundle import loss_of_output
from tensorflowonspark.ml.serialization import library_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Losses of Keras by what they take, under their own names, which both versions of Keras have.
_SPARSE = ("sparse_categorical_crossentropy",)
_ONE_HOT = ("categorical_crossentropy", "categorical_focal_crossentropy", "categorical_hinge")
_BINARY = ("binary_crossentropy", "binary_focal_crossentropy")
_OTHERS = (
    *("mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error"),
    *("mean_squared_logarithmic_error", "poisson", "hinge", "squared_hinge"),
)


@dataclass(frozen=True)
class ColumnForm:
    """The shape of one row's value in a column, None for a size that is unknown or varies, and whether it is whole.

    The shape itself is None if its number of dimensions is unknown.
    """

    shape: tuple[int | None, ...] | None
    is_whole: bool = False


Forms = Mapping[str, ColumnForm]


def forms_of(schema: "StructType", columns: Sequence[str]) -> dict[str, ColumnForm]:
    """Return the forms of columns by their types in a DataFrame: a number has no dimensions."""
    from pyspark.sql.types import BooleanType, IntegralType, NumericType

    found = {}
    for name in columns:
        kind = schema[name].dataType
        is_number = isinstance(kind, (NumericType, BooleanType))
        found[name] = ColumnForm(() if is_number else None, isinstance(kind, (IntegralType, BooleanType)))
    return found


def forms_of_tensors(spec: Any, columns: Sequence[str]) -> dict[str, ColumnForm]:
    """Return the forms of columns by the shapes and dtypes of their tensors."""
    by_name = spec if isinstance(spec, Mapping) else {columns[0]: spec}
    found = {}
    for name in columns:
        shape = by_name[name].shape
        plain = None if shape.rank is None else tuple(shape.as_list()[1:])
        found[name] = ColumnForm(plain, by_name[name].dtype.is_integer or by_name[name].dtype.is_bool)
    return found


def check_features(inputs: Sequence[TensorInfo], forms: Forms) -> None:
    """Refuse columns of features, in order, that are wider or narrower than the model's inputs.

    Nothing is checked if no input is known.

    Examples
    --------
    >>> check_features([TensorInfo("x", (3,), "float32")], {"a": ColumnForm(()), "b": ColumnForm(())})
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: the model's input takes 3 numbers in each row, and the columns 'a', 'b' have \
2: give it as many (featuresCols), or change the shape of the input
    """
    if len(inputs) == 1 < len(forms):
        _check_side_by_side(inputs[0], forms)
        return
    for (name, form), taken in zip(forms.items(), input_of_each(inputs, list(forms)), strict=True):
        if taken is None or form.shape is None or not taken.is_fixed:
            continue
        shape = form.shape or (1,) * len(taken.shape)  # Keras adds dimensions of one to a number
        if not _agree(shape, taken.shape):
            raise SpecError(
                f"the model's input{f' {taken.name!r}' if len(inputs) > 1 else ''} takes {_numbers(taken.shape)} in "
                f"each row, and the column {name!r} has {_numbers(form.shape)}: give it as many, or change the shape "
                "of the input"
            )


def _check_side_by_side(taken: TensorInfo, forms: Forms) -> None:
    widths = [1 if not form.shape else form.shape[-1] for form in forms.values() if form.shape is not None]
    known = [width for width in widths if width is not None]
    if len(known) < len(forms) or not taken.is_fixed:
        return
    if sum(known) != (taken.shape or (1,))[-1]:
        raise SpecError(
            f"the model's input takes {_numbers(taken.shape)} in each row, and the columns "
            f"{', '.join(map(repr, forms))} have {sum(known)}: give it as many (featuresCols), or change the shape of "
            "the input"
        )


def _agree(one: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """Return whether shapes can be equal; Keras adds or removes a last dimension of one."""
    if len(one) != len(other):
        return True
    return all(None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))


def _numbers(shape: Sequence[int | None]) -> str:
    if all(size == 1 for size in shape):
        return "one number"
    return f"{shape[0]} numbers" if len(shape) == 1 else f"numbers of shape {tuple(shape)}"


@dataclass(frozen=True)
class LabelCheck:
    """What the loss of an output takes of its column of labels."""

    column: str
    output: TensorInfo  # of one dimension
    loss: str  # the name of one of Keras's own
    is_only: bool = True  # whether the model has no other output
    ignored: int | None = None  # a label that is no class, and is left out

    def check(self, form: ColumnForm) -> None:
        """Refuse labels of another shape than the loss takes; nothing if their shape is unknown."""
        units, shape = self.output.shape[0], form.shape
        if shape is None or len(shape) > 1 or None in shape or units is None:
            return
        labels = 1 if not shape else shape[0] or 0
        if self.loss in _SPARSE:
            if labels > 1:
                raise SpecError(
                    f"{self._column} holds {labels} numbers in each row, and {self.loss} takes one, the class: "
                    "loss='categorical_crossentropy' takes vectors"
                )
            return
        if labels == units:
            return
        if labels > 1:
            raise SpecError(f"{self._column} holds {labels} numbers in each row, and {self._output}")
        held = "whole numbers" if form.is_whole else "one number in each row"
        if self.loss in _ONE_HOT:
            raise SpecError(
                f"{self._column} holds {held}: take loss='sparse_categorical_crossentropy'; {self.loss} takes a "
                f"vector of {units} for each row"
            )
        classes = "; for classes by number: loss='sparse_categorical_crossentropy'" if self.loss in _BINARY else ""
        raise SpecError(
            f"{self._column} holds {held}, and {self._output}, each of which {self.loss} would compare with it: give "
            f"the model one unit, or a column of vectors of {units}{classes}"
        )

    def checked(self, labels: Any) -> Any:
        """Return a tensor of labels whose computation fails at one that the loss does not take."""
        import tensorflow as tf

        if labels.dtype == tf.string or hasattr(labels, "flat_values"):
            return labels
        values = tf.cast(labels, tf.float64)
        if self.loss in _SPARSE:
            units = self.output.shape[0]
            fits = (values >= 0) & (values < float(units or 0)) & (values == tf.floor(values))
            if self.ignored is not None:
                fits |= values == float(self.ignored)
            reason = (
                f"{self._column} has labels that are no class, and {self._output}: {self.loss} takes whole numbers "
                f"from 0 to {(units or 0) - 1}"
            )
        elif self.loss in _BINARY:
            fits = (values >= 0) & (values <= 1)
            reason = f"{self._column} has labels outside of 0 to 1, and {self.loss} takes these alone"
        else:
            return labels
        return require_all(fits, labels, f"{reason}; the first such labels:", labels)

    @property
    def _column(self) -> str:
        return f"label column {self.column!r}"

    @property
    def _output(self) -> str:
        units = self.output.shape[0]
        name = "" if self.is_only else f" {self.output.name!r}"
        return f"the model's output{name} has {units} {'unit' if units == 1 else 'units'}"


def checked_labels(labels: Any, checks: Mapping[str, LabelCheck]) -> Any:
    """Return labels, or those by output, whose computation fails at one that the loss of its output does not take."""
    if isinstance(labels, Mapping):
        return {name: checks[name].checked(each) if name in checks else each for name, each in labels.items()}
    for check in checks.values():
        labels = check.checked(labels)
    return labels


def label_checks(model: Any, loss: Any, columns: Sequence[str]) -> dict[str, LabelCheck]:
    """Return the check of the labels of each output whose loss is one of Keras's own, by the output's name.

    The loss is what the model is compiled with: a loss, its name, or one for each output. The columns are in order or
    by the outputs' names.
    """
    paths = output_paths(model)
    names = list(paths)
    by_output = dict(zip(names, columns, strict=True)) if are_in_order(names, columns, "outputs") else {}
    if len(names) == len(columns) == 1:
        by_output = {names[0]: columns[0]}
    found, infos = {}, outputs_of(model)
    for place, (name, path) in enumerate(paths.items()):
        one = loss_of_output(loss, name, path, place)
        known = _name_in_keras(library_of(model), one)
        column = by_output.get(name, name)
        if known and len(infos[name].shape) == 1 and column in columns:
            ignored = getattr(one, "ignore_class", None)
            found[name] = LabelCheck(column, infos[name], known, len(names) == 1, ignored)
    return found


def _name_in_keras(library: str, loss: Any) -> str:
    """Return the name of a loss, or of the function that it calls, if that is one of Keras's own; else nothing."""
    losses = import_module(library).losses
    if isinstance(loss, str):
        try:
            loss = losses.get(loss)
        except ValueError:  # a name of the user's
            return ""
    own = type(loss).__module__.partition(".")[0] == library
    function: Callable[..., Any] | None = getattr(loss, "fn", None) if own else loss
    names = (*_SPARSE, *_ONE_HOT, *_BINARY, *_OTHERS)
    return next((name for name in names if function is not None and getattr(losses, name, None) is function), "")
