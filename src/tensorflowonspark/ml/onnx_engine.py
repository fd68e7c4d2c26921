"""A Keras model that ONNX Runtime computes, in tasks that need neither Keras nor TensorFlow.

The driver converts the model once, and compares both for some rows that it makes up: a DataFrame has none until it is
computed. What tasks get is a bundle of its own kind, whose data is the graph.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tensorflowonspark.columns import Ragged
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.exports.formats import FORMATS, require_packages
from tensorflowonspark.exports.parity import onnx_call
from tensorflowonspark.exports.writing import Comparison, write_as
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.ml.calls import Call, of_layers
from tensorflowonspark.ml.code import Code
from tensorflowonspark.ml.exporting import served_columns
from tensorflowonspark.ml.inputs import to_inputs
from tensorflowonspark.ml.model_bundle import ModelBundle
from tensorflowonspark.ml.serialization import load_model

_ONNX = FORMATS["onnx"]
_OTHERWISE = "engine='keras', the default, applies every model"
_ROWS, _SIZE = 8, 32  # that are made up, and what is made of a size that varies: convolutions take no less than theirs
_TOLERANCE = 1e-3  # as that of exports
_NO_MEMORY = "Failed to allocate memory for requested buffer"  # of ONNX Runtime, which has no class for it


def onnx_bundle(bundle: ModelBundle, layers: Sequence[str] = ()) -> ModelBundle:
    """Return a Keras model converted for ONNX Runtime; with `layers` its outputs are those of these layers.

    Raises SpecError if it is no model of Keras 3, a package is missing, or ONNX can't express the model or gives other
    results.
    """
    if bundle.kind != "keras":
        raise SpecError(f"engine='onnx' takes a model of Keras 3, and this stage holds a {bundle.kind}. {_OTHERWISE}")
    if texts := [each.name for each in bundle.inputs if each.dtype == "string"]:
        raise SpecError(f"engine='onnx': the input {texts[0]!r} takes texts, which are no tensors of it. {_OTHERWISE}")
    model, objects = load_model(bundle), bundle.code.load("keras")
    if layers:
        import keras

        model = of_layers(keras, model, layers)
    served = partial(served_columns, bundle.inputs, bundle.inputs, objects)
    compare = Comparison(_made_up(bundle.inputs), is_asked=True, tolerance=_TOLERANCE, remedy=_OTHERWISE)
    with TemporaryDirectory(prefix="tfos-") as scratch:
        path = Path(scratch, f"model{_ONNX.ending}")
        try:
            require_packages(_ONNX)
            require_runtime("this Python")
            write_as(_ONNX, compare, served)(model, str(path))
        except SpecError as error:
            text = str(error)
            raise SpecError(f"engine='onnx': {text}" + ("" if _OTHERWISE in text else f". {_OTHERWISE}")) from error
        return replace(bundle, kind="onnx", data=path.read_bytes(), code=Code(), layers={}, distrusted=False)


def require_runtime(where: str) -> None:
    """Refuse to go on without ONNX Runtime."""
    if not _ONNX.has_runtime:
        raise SpecError(f"{_ONNX.runtime} is not installed in {where}: {_ONNX.install}")


def _made_up(inputs: Sequence[TensorInfo]) -> dict[str, "np.ndarray[Any, Any]"]:
    """Return rows of numbers about 0 by input; integers are 0 and 1, which each table of numbers has."""
    random = np.random.default_rng(0)
    rows = {}
    for each in inputs:
        shape = (_ROWS, *(_SIZE if size is None else size for size in each.shape))
        is_float = "float" in each.dtype
        rows[each.name] = (random.normal(size=shape) if is_float else random.integers(0, 2, shape)).astype(each.dtype)
    return rows


def onnx_model_call(bundle: ModelBundle) -> Call:
    """Return the function of the features of some rows, by column, which computes a converted model."""
    require_runtime("the Python of this executor")
    run = onnx_call(bundle.data, int(os.environ.get("OMP_NUM_THREADS") or 1))  # Spark sets it to the cores of a task

    def call(features: Mapping[str, Any]) -> dict[str, Any]:
        with np.errstate(over="ignore"):  # a float too large for a smaller dtype is infinite there, as in TensorFlow
            taken = to_inputs({name: _dense(name, each) for name, each in features.items()}, bundle.inputs)
            values = taken if isinstance(taken, Mapping) else {bundle.inputs[0].name: taken}
            rows = {each.name: _of_rank(values[each.name], each) for each in bundle.inputs}
        try:
            return run(rows)
        except Exception as error:
            if _NO_MEMORY in str(error):
                raise MemoryError(str(error)) from error
            raise

    return call


def _dense(name: str, values: Any) -> "np.ndarray[Any, Any]":
    if not isinstance(values, Ragged):
        return np.asarray(values)
    lengths = [np.unique(np.diff(level)) for level in values.splits]
    if any(len(each) > 1 for each in lengths):
        raise FeedError(
            f"column {name!r} has rows of different lengths, and engine='onnx' takes rows alike: pad them, or take "
            "engine='keras'"
        )
    return values.values.reshape(len(values), *(each.sum() for each in lengths), *values.values.shape[1:])


def _of_rank(values: "np.ndarray[Any, Any]", taken: TensorInfo) -> "np.ndarray[Any, Any]":
    """Return values as an input takes them: as in Keras, a last dimension of 1 is added to numbers, or left out."""
    missing = 1 + len(taken.shape) - values.ndim
    if missing == 1 and taken.shape[-1] == 1:
        values = values[..., None]
    elif missing == -1 and values.shape[-1] == 1:
        values = values[..., 0]
    return values.astype(taken.dtype, copy=False)
