"""A model as it is served: it takes tensors by the inputs' names, and returns them by the outputs' names.

Converters name what a model takes and returns by operations of its graph, each in its own way. With dicts on both sides
all of them have the names that a SavedModel has.
"""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.formats import OPENVINO_FILE, ExportFormat
from tensorflowonspark.keras.inference import inference_call
from tensorflowonspark.keras.saving import outside_scope
from tensorflowonspark.keras.structure import TensorInfo, as_inputs, inputs_of, leaves

Named = dict[str, Any]  # tensors or arrays by name
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.-]*")  # which TensorFlow changes nothing in


class ServedModel:
    """A Keras model with the names of its inputs and outputs.

    The inputs are those that the model declares; of a class of models with a ``call`` of its own those of some rows, as
    it takes them. `call` is by default the model's own, as ``predict`` calls it; `reference` gives the results that it
    is to have; and `objects` are the user's own classes and functions that Keras needs to read it from a file.
    """

    def __init__(
        self,
        model: Any,
        inputs: Sequence[TensorInfo] = (),
        call: Callable[[Named], Named] | None = None,
        *,
        rows: Any = None,
        reference: Callable[[Named], Named] | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.rows = None if rows is None else _named(rows, [each.name for each in inputs or inputs_of(model)])
        self.inputs = list(inputs or inputs_of(model) or map(_described, (self.rows or {}).items()))
        if not self.inputs:
            raise SpecError(
                f"the inputs of {type(model).__name__}, which has a call of its own, are not known: give some rows as "
                "the model takes them (check_rows=features)"
            )
        self.is_wrapped = call is not None  # so that Keras's own export of the model would take and give other names
        self._call = call or self._of_model
        self._reference = reference
        self.objects = dict(objects or {})
        self._predict = inference_call(model)

    def _of_model(self, values: Named) -> Named:
        known = bool(inputs_of(self.model))
        alone = len(self.inputs) == 1
        taken = as_inputs(self.model, next(iter(values.values())) if alone else values) if known else _given(values)
        return named_outputs(self._predict(taken))

    def require_rows(self) -> None:
        """Refuse rows that the model does not take: by their names, number of dimensions, or kind of values."""
        rows = self.rows or {}
        if missing := [each.name for each in self.inputs if each.name not in rows]:
            raise SpecError(f"check_rows: the model has an input {missing[0]!r}, and the rows have {list(rows)}")
        for each in self.inputs:
            found = rows[each.name]
            sizes = zip(found.shape[1:], each.shape, strict=False)
            fits = found.ndim == 1 + len(each.shape) and all(known in (None, size) for size, known in sizes)
            if not fits or (each.dtype == "string") != (dtype_name(found) == "string"):
                raise SpecError(
                    f"check_rows: the rows of {each.name!r} are {found.dtype} of shape {found.shape[1:]}, and the "
                    f"model takes {each.dtype} of shape {each.shape}: give rows as it takes them "
                    "(check_rows=features), or check_rows=0"
                )

    def results(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return what the model itself gives for the rows."""
        import keras

        if self._reference is not None:
            return self._reference(self.row_values())
        tensors = {each.name: keras.ops.convert_to_tensor(self._row_values(each)) for each in self.inputs}
        with outside_scope():
            return {name: keras.ops.convert_to_numpy(each) for name, each in self._call(tensors).items()}

    def row_values(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the rows by input, with the dtypes that these have."""
        return {each.name: self._row_values(each) for each in self.inputs}

    def _row_values(self, taken: TensorInfo) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = (self.rows or {})[taken.name]
        return values if taken.dtype == "string" else values.astype(taken.dtype)

    def write(self, path: str, to: ExportFormat) -> None:
        """Write it to a local path, as a file or directory of a format that is converted; Keras is on TensorFlow.

        Raises SpecError if the format can't express the model.
        """
        import keras

        if wrong := next((each.name for each in self.inputs if not _NAME.fullmatch(each.name)), None):
            raise SpecError(
                f"the input {wrong!r} can't have this name in a graph, which has letters, digits, '_', '.' and '-': "
                "rename the column, or the model's input"
            )
        specs = {
            each.name: keras.InputSpec(shape=(None, *each.shape), dtype=each.dtype, name=each.name)
            for each in self.inputs
        }
        target = f"{path}/{OPENVINO_FILE}" if to.name == "openvino" else path
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        with _quiet(), outside_scope():
            try:
                served = _keras_model(self.model, self._frozen() if to.name == "onnx" else self._call)
                served.export(target, format=to.name, verbose=False, input_signature=[specs])
            except Exception as error:  # of the converters, which have no common class of errors
                text = " ".join(str(error).split())[:400]
                raise SpecError(
                    f"{self.model.name}: the format {to.name!r} can't express this model ({type(error).__name__}: "
                    f"{text}). format='tf_saved_model' and format='keras' have every layer of Keras"
                ) from error

    def _frozen(self) -> Callable[[Named], Named]:
        """Return the call with all that it captures as constants: tf2onnx takes captured tensors for inputs."""
        import tensorflow as tf
        from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

        specs = {each.name: tf.TensorSpec((None, *each.shape), each.dtype, each.name) for each in self.inputs}
        traced = tf.function(self._call).get_concrete_function(specs)
        names = sorted(traced.structured_outputs)
        frozen = convert_variables_to_constants_v2(traced, lower_control_flow=False)
        order = [each.name.partition(":")[0] for each in frozen.inputs]
        if others := sorted({*order} - {*specs}):
            raise SpecError(f"its graph takes {', '.join(others)}, as the table of a layer for texts")
        return lambda values: dict(zip(names, frozen(*(values[name] for name in order)), strict=True))


def _keras_model(model: Any, call: Callable[[Named], Named]) -> Any:
    """Return a Keras model that takes and returns dicts; only Keras's own models can be exported by it."""
    import keras

    class Served(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="served", autocast=False)  # it takes what its inputs declare
            self.model = model
            self.built = True  # it has nothing of its own to build

        def call(self, inputs: Named) -> Named:
            return call(inputs)

    return Served()


def named_outputs(results: Any) -> Named:
    """Return what a model returns by name: the keys of a dict, or else as in a SavedModel of Keras.

    Examples
    --------
    >>> named_outputs([1, 2]), named_outputs({"score": 1})
    ({'output_0': 1, 'output_1': 2}, {'score': 1})
    """
    if isinstance(results, Mapping):
        return {"_".join(map(str, path)): each for path, each in leaves(results)}
    return {f"output_{place}": each for place, (_, each) in enumerate(leaves(results))}


def _named(rows: Any, inputs: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Return rows as the model takes them by the names of its inputs."""
    if isinstance(rows, Mapping):
        found = {"_".join(map(str, path)): np.asarray(each) for path, each in leaves(rows)}
        # One column for one input has the column's name, which a model without names for its inputs does not know.
        return dict(zip(inputs, found.values(), strict=True)) if len(inputs) == len(found) == 1 else found
    values = [np.asarray(each) for each in rows] if isinstance(rows, (list, tuple)) else [np.asarray(rows)]
    names = list(inputs) or [f"input_{place}" for place in range(len(values))]
    if len(values) != len(names):
        raise SpecError(f"check_rows: {len(values)} arrays, and the model has {len(names)} inputs ({', '.join(names)})")
    return dict(zip(names, values, strict=True))


def _given(values: Named) -> Any:
    """Return the inputs of a model that declares none in the structure in which its rows were given."""
    plain = list(values) == [f"input_{place}" for place in range(len(values))]
    if not plain:
        return values
    return next(iter(values.values())) if len(values) == 1 else list(values.values())


def _described(named: tuple[str, np.ndarray[Any, Any]]) -> TensorInfo:
    name, values = named
    return TensorInfo(name, values.shape[1:], dtype_name(values))


def dtype_name(values: np.ndarray[Any, Any]) -> str:
    """Return the dtype of rows as a model's input has it: ``string`` for texts and bytes."""
    return "string" if values.dtype.kind in "OSU" else values.dtype.name


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep out what Keras and the converters print and warn of: temporary paths, and the kinds of a dict's values.

    The program's logging stays as it is: a conversion that fails in OpenVINO leaves the root logger without warnings.
    """
    root = logging.getLogger()
    level, filters, handlers = root.level, [*root.filters], [*root.handlers]
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
        root.filters[:], root.handlers[:] = filters, handlers
