"""Whether an export computes what the model does: both are applied to some rows, the export in its own runtime."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.formats import OPENVINO_FILE, ExportFormat

_log = logging.getLogger(__name__)
Arrays = dict[str, "np.ndarray[Any, Any]"]
Call = Callable[[Arrays], Arrays]  # takes rows by input, and returns the outputs by name


def can_apply(to: ExportFormat) -> bool:
    """Return whether the runtime of a format is installed; warn if it is not."""
    if to.has_runtime:
        return True
    _log.warning(
        "format=%r: the export was not compared with the model, since %s is not installed: %s on the nodes; "
        "check_rows=0 says that it need not be",
        *(to.name, to.runtime, to.install),
    )
    return False


def require_equal(expected: Arrays, found: Arrays, tolerance: float, what: str, remedy: str) -> float:
    """Refuse an export whose results differ from the model's; return the largest difference.

    A difference counts in parts of the largest value of its output. Raises SpecError, which names the output, the row
    and both values, and says what to do where they may differ.

    Examples
    --------
    >>> require_equal({"a": np.array([[1.0], [4.0]])}, {"a": np.array([[1.0], [4.0]])}, 1e-3, "m.onnx", "")
    0.0
    >>> require_equal({"a": np.array([[1.0], [4.0]])}, {"a": np.array([[1.0], [4.5]])}, 1e-3, "m.onnx", "use Keras")
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: m.onnx differs from the model: row 1 of output 'a' is 4.5, and the model gives \
4.0 (largest difference 0.5; tolerance=0.001 of the largest value, which is 4.0). It was not written; use Keras
    """
    if expected.keys() != found.keys():
        raise SpecError(f"{what} has the outputs {sorted(found)}, and the model {sorted(expected)}. It was not written")
    largest = 0.0
    for name, wanted in expected.items():
        given = found[name]
        if given.shape != wanted.shape:
            shapes = f"{given.shape} for {len(wanted)} rows, and the model gives {wanted.shape}"
            raise SpecError(f"{what}: output {name!r} has the shape {shapes}. It was not written")
        if wanted.dtype.kind in "OSU":
            difference, scale = (given.astype(str) != wanted.astype(str)).astype(float), 0.0
        else:
            pair = given.astype(np.float64), wanted.astype(np.float64)
            same = (pair[0] == pair[1]) | (np.isnan(pair[0]) & np.isnan(pair[1]))
            difference = np.where(same, 0.0, np.nan_to_num(np.abs(pair[0] - pair[1]), nan=np.inf))
            finite = np.abs(pair[1])[np.isfinite(pair[1])]
            scale = float(finite.max(initial=0.0))
        if not difference.size:
            continue
        worst = np.unravel_index(int(difference.argmax()), difference.shape)
        largest = max(largest, float(difference[worst]))
        if difference[worst] > tolerance * scale:
            values = f"is {given[worst]}, and the model gives {wanted[worst]}"
            raise SpecError(
                f"{what} differs from the model: row {worst[0]} of output {name!r} {values} (largest difference "
                f"{difference[worst]:.3g}; tolerance={tolerance:g} of the largest value, which is {scale:.7}). It was "
                f"not written; {remedy}"
            )
    return largest


def apply(path: str, to: ExportFormat, rows: Arrays) -> Arrays:
    """Return the outputs of an export at a local path for rows by input. Raises SpecError if it can't be applied."""
    try:
        return RUNTIMES[to.name](path)(rows)
    except Exception as error:  # of the runtimes, which have no common class of errors
        text = " ".join(str(error).split())[:400]
        raise SpecError(
            f"format={to.name!r}: {to.runtime or 'TensorFlow'} can't apply what was exported ({type(error).__name__}: "
            f"{text}). It was not written; format='tf_saved_model' and format='keras' have every layer of Keras"
        ) from error


def _saved_model(path: str) -> Call:
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    function = loaded.signatures["serving_default"]
    specs = function.structured_input_signature[1]

    def call(rows: Arrays) -> Arrays:
        if len(specs) == 1:  # a class of models has the name of its parameter
            rows = dict(zip(specs, rows.values(), strict=True))
        return {
            name: each.numpy() for name, each in function(**{name: tf.constant(rows[name]) for name in specs}).items()
        }

    call.model = loaded  # type: ignore[attr-defined] # keeps its variables
    return call


def onnx_call(model: str | bytes, threads: int = 0) -> Call:
    """Return the function of a model in a file, or of its bytes; by default it uses all cores of the machine."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs, outputs = ([each.name for each in found] for found in (session.get_inputs(), session.get_outputs()))
    return lambda rows: dict(zip(outputs, session.run(None, {name: rows[name] for name in inputs}), strict=True))


def _litert(path: str) -> Call:
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_path=path).get_signature_runner()
    return lambda rows: {name: np.array(each) for name, each in run(**rows).items()}


def _openvino(path: str) -> Call:
    import openvino

    # By default it computes in 16 bits where the processor has them.
    model = openvino.Core().compile_model(f"{path}/{OPENVINO_FILE}", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = {
        each: min(each.get_names(), key=lambda name: (":" in name, name)) for each in [*model.inputs, *model.outputs]
    }

    def call(rows: Arrays) -> Arrays:
        results = model([rows[names[each]] for each in model.inputs])
        return {names[each]: results[each] for each in model.outputs}

    return call


# What loads an export from a local path, by the name of its format.
RUNTIMES: dict[str, Callable[[str], Call]] = {
    "tf_saved_model": _saved_model,
    "onnx": onnx_call,
    "litert": _litert,
    "openvino": _openvino,
}
