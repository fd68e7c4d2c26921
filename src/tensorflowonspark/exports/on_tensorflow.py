"""Conversion in a process with Keras on TensorFlow, for programs on another backend.

The converters take TensorFlow's graphs. A ``.keras`` file is the same on all backends: so the program writes one, and a
process of its own reads it on TensorFlow, converts it and applies the result to rows. The program compares them with
what its own model gives, so a layer that computes something else there is found.
"""

import os
import pickle
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import cloudpickle

from tensorflowonspark import processes
from tensorflowonspark.errors import SpecError
from tensorflowonspark.exports.formats import ExportFormat
from tensorflowonspark.exports.parity import Arrays, apply
from tensorflowonspark.exports.served_model import ServedModel

_MODEL = "model.keras"
_STOPPED_SECONDS = 3600.0  # of this process, as by a debugger, after which the other one is ended with it
_VARIABLES = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}


def write_on_tensorflow(
    made: ServedModel, path: str, to: ExportFormat, served: Callable[..., ServedModel], *, compares: bool
) -> Arrays:
    """Write a model to a local path; return what the export gives for its rows, if that is asked for.

    `served` makes there of a model and of rows what this one is here. Raises SpecError as the conversion does in this
    process, or if the model can't be read on TensorFlow.
    """
    import keras

    with TemporaryDirectory(prefix="tfos-", dir=Path(path).parent) as scratch:
        file, objects = f"{scratch}/{_MODEL}", {**keras.saving.get_custom_objects(), **made.objects}
        made.model.save(file)
        job = cloudpickle.dumps((served, made.rows, path, to, compares, file, objects))
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # Spark has added some
        process, pipe = processes.start(
            __name__, {**os.environ, **paths, **_VARIABLES}, orphan_timeout=_STOPPED_SECONDS
        )
        found: Arrays | str = ""
        with closing(pipe), suppress(EOFError, OSError):  # if it is killed
            pipe.send_bytes(job)
            found = pipe.recv()
        code = process.wait()
    if isinstance(found, str):
        raise SpecError(found or f"format={to.name!r}: the process that converts it ended with exit code {code}")
    return found


def _main(pipe: Connection) -> None:
    import keras

    served, rows, path, to, compares, file, objects = pickle.loads(pipe.recv_bytes())
    found: Arrays | str
    try:
        try:
            with keras.saving.custom_object_scope(objects):
                model = keras.models.load_model(file, compile=False)
        except Exception as error:  # of the user's own code
            text = " ".join(str(error).split())[-300:]  # Keras begins with the configuration
            raise SpecError(
                f"format={to.name!r} is written on TensorFlow, where Keras can't read this model (... {text}). A class "
                "of your own needs a get_config and keras.saving.register_keras_serializable, and layers compute with "
                "keras.ops"
            ) from error
        made = served(model, rows=rows)
        made.write(path, to)
        found = apply(path, to, made.row_values()) if compares else {}
    except SpecError as error:
        found = str(error)
    pipe.send(found)


if __name__ == "__main__":
    with closing(processes.parent_pipe()) as parent:
        _main(parent)
