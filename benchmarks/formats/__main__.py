"""Models in the formats of an export: the largest difference to the model, the size, and rows per second.

The rows are those of a batch of 256, which each runtime takes again and again; they take turns.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances, table

_FORMATS = ("keras", "tf_saved_model", "onnx", "litert", "openvino")
_SECONDS = 0.5  # of calls in a round


def measure(options, log):
    """Export each model in each format, and apply what works."""
    import keras

    from benchmarks.formats.models import MODELS

    found = {}
    for make in (*MODELS, divided):
        keras.utils.set_random_seed(1)
        model, rows = make()
        with tempfile.TemporaryDirectory() as folder:
            found[make.__name__.replace("_", " ")] = _of_model(model, rows, folder, options.rounds)
    packages = ("tensorflowonspark", "tensorflow", "keras", "tf2onnx", "onnxruntime", "ai-edge-litert", "openvino")
    yield {"models": found, "about": circumstances(options, packages=packages)}


def divided():
    """Return a model with a table that is divided among the workers."""
    import keras

    from benchmarks.formats.models import ints
    from tensorflowonspark.keras import ShardedEmbedding

    stack = [keras.Input((6,), dtype="int64"), ShardedEmbedding(1000, 8), keras.layers.Flatten(), keras.layers.Dense(1)]
    model, rows = keras.Sequential(stack), ints(1000, 6, dtype="int64")
    model(rows)
    return model, rows


def _of_model(model, rows, folder, rounds):
    from tensorflowonspark.errors import SpecError
    from tensorflowonspark.exports.formats import FORMATS
    from tensorflowonspark.exports.parity import RUNTIMES, require_equal
    from tensorflowonspark.exports.served_model import ServedModel
    from tensorflowonspark.exports.writing import comparison, divided_layers, export, require_writable, write_as

    of_all = bool(divided_layers(model))
    expected = None if of_all else ServedModel(model, rows=rows).results()
    cells, calls = {}, {}
    for name in _FORMATS:
        to = FORMATS[name]
        path = f"{folder}/{name}{to.ending}"
        try:
            require_writable(model, to)
            export(model, path, True, None, write_as(to, comparison(0 if of_all else rows, to, None, 1e-3)))
        except SpecError as error:
            cells[name] = {"refused": str(error)}
            continue
        files = [Path(path)] if to.ending else [each for each in Path(path).rglob("*") if each.is_file()]
        cells[name] = {"bytes": sum(each.stat().st_size for each in files)}
        call = RUNTIMES[name](path) if name in RUNTIMES else _keras(path, rows)
        taken = ServedModel(model, rows=rows).row_values()
        if expected is None:
            expected = _keras(path, rows)(taken)
        cells[name]["difference"] = require_equal(expected, call(taken), 1.0, name)
        calls[name] = lambda call=call, taken=taken: call(taken)
    for _ in range(rounds + 1):  # the first one warms up
        for name, call in calls.items():
            cells[name].setdefault("rows per second", []).append(_rate(call, len(next(iter(_rows(rows).values())))))
    return cells


def _rows(rows):
    return rows if isinstance(rows, dict) else {"": rows}


def _keras(path, rows):
    import keras
    import tensorflow as tf

    from tensorflowonspark.exports.served_model import ServedModel

    served = ServedModel(keras.models.load_model(path, compile=False), rows=rows)
    call = tf.function(served._call)

    def apply(taken):
        tensors = {name: tf.constant(values) for name, values in taken.items()}
        return {name: each.numpy() for name, each in call(tensors).items()}

    return apply


def _rate(call, rows):
    began, calls = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < _SECONDS:
        call()
        calls += 1
    return calls * rows / seconds


def _cell(found):
    if "refused" in found:
        return "refused"
    rate = median(found["rows per second"][1:])
    return f"{found['difference']:.1g}; {found['bytes'] / 1000:.0f} kB; {rate / 1000:,.0f}k rows/s"


def report(results):
    """Return the sections of the page."""
    rows = [[model, *(_cell(cells[name]) for name in _FORMATS)] for model, cells in results["models"].items()]
    refused = [
        [model, name, cells[name]["refused"].replace("\n", " ")[:240]]
        for model, cells in results["models"].items()
        for name in _FORMATS
        if "refused" in cells[name]
    ]
    shown = table(["model", *_FORMATS], rows)
    reasons = table(["model", "format", "the error begins with"], refused)
    return {"formats": f"{results['about']}\n\n{shown}", "refused": reasons}


if __name__ == "__main__":
    run(command("formats", __doc__), measure, report)
