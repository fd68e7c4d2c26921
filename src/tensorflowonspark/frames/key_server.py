"""The process that has imported Keras, and its forks, in which the user's function trains the models of keys.

A Spark worker starts it (`key_tasks`), and asks for one fork after another. It has one thread and never starts
TensorFlow's runtime: a fork begins in milliseconds, with nothing that the keys before have left, and the memory that a
function takes is free when it ends. A fork ends itself when the Spark worker has ended.
"""

import os
import pickle
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.columns import Ragged
from tensorflowonspark.errors import SpecError, error_text
from tensorflowonspark.ml.distribution import prepare_tensorflow
from tensorflowonspark.ml.features import TakenColumns, features_of
from tensorflowonspark.ml.serialization import is_model, serialize_model
from tensorflowonspark.node.tracebacks import without_hidden_frames
from tensorflowonspark.processes import kill_group, parent_pipe, watch_process
from tensorflowonspark.supervisor.forkserver.preload import preload, why_unsafe

PROCESS = "tfos-key"  # the name of a fork
MOST_BYTES = 1 << 30  # of a model in a row: Spark's arrays end at 2 GiB

Outcome = tuple["bytes | None", dict[str, float], "str | None"]  # a key's model, its metrics, its error


def serve_forks(pipe: Connection) -> None:
    """Import Keras, then fork a process for each descriptor that arrives, and send how it has ended."""
    worker: int = pipe.recv()
    try:
        preload()
        problem = why_unsafe(1)
    except ImportError as error:
        problem = error_text(error)
    pipe.send(problem)
    while True:
        try:
            descriptor = recv_handle(pipe)
        except EOFError:
            return
        pid = os.fork()
        if not pid:
            pipe.close()
            _serve_keys(Connection(descriptor), worker)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        kill_group(pid)  # what the function has started
        pipe.send(os.waitstatus_to_exitcode(status))


def _serve_keys(connection: Connection, worker: int) -> None:
    """Train the models of some keys in a fork, and end it."""
    try:
        os.setsid()
        Path("/proc/self/comm").write_text(PROCESS)
        watch_process(worker, lambda: kill_group(os.getpid()))
        prepare_tensorflow()
        connection.send(os.getpid())
        program, count = connection.recv()
        first: list[tuple[Any, ...]] = []
        for _ in range(count):
            connection.send(_outcome(program, first, *connection.recv()))
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _outcome(program: bytes, first: list[tuple[Any, ...]], seed: int, key: Any, rows: bytes) -> Outcome:
    """Return what the function gives for a key, or its error; the list keeps the model that `build` has returned."""
    import keras

    try:
        function, build, first_seed = pickle.loads(program)
        if build is not None and not first:
            keras.utils.set_random_seed(first_seed)
            first.append(_built(build))
        for model, values in first:
            for variable, value in values:
                variable.assign(value)
            function = _with(function, model)
        batch = pa.ipc.open_stream(rows).read_next_batch()
        arrays = features_of(TakenColumns(tuple(batch.schema.names), {}), batch, by_name=True)
        keras.utils.set_random_seed(seed)
        found = function(
            key, {name: each.rows() if isinstance(each, Ragged) else each for name, each in arrays.items()}
        )
        return *checked(found), None
    except BaseException as error:  # also SystemExit: the end of a key is not that of the job
        frames = traceback.extract_tb(without_hidden_frames(error))
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        return None, {}, f"{type(error).__name__}: {error_text(error)}{place}"


def _with(function: Callable[..., Any], model: Any) -> Callable[..., Any]:
    return lambda key, rows: function(key, rows, model)


def _built(build: Callable[[], Any]) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return a model, and its variables with their values."""
    model = build()
    if not is_model(model) or not model.built or getattr(model, "optimizer", None) is None:
        raise SpecError(f"build() returned {model!r}: expected a compiled Keras model that has its weights")
    model.optimizer.build(model.trainable_variables)
    return model, [(each, each.numpy()) for each in (*model.variables, *model.optimizer.variables)]


def checked(found: Any) -> tuple[bytes | None, dict[str, float]]:
    """Return what a function has returned as the bytes of a model's file and metrics; raise TypeError if it is neither.

    Examples
    --------
    >>> checked({"loss": np.float32(0.5)}), checked(None)
    ((None, {'loss': 0.5}), (None, {}))
    """
    model, metrics = found if isinstance(found, tuple) and len(found) == 2 else (None, found)  # noqa: PLR2004
    if is_model(metrics) and model is None:
        model, metrics = metrics, {}
    if not (model is None or is_model(model)) or not isinstance(metrics := metrics or {}, Mapping):
        shown = error_text(Exception(repr(found)), 200)
        raise TypeError(f"the function returned {shown}: expected a Keras model, a dict of numbers, or a pair of both")
    numbers = {str(name): np.asarray(value) for name, value in metrics.items()}
    for name, each in numbers.items():
        if each.ndim or each.dtype.kind not in "biuf":
            raise TypeError(f"the metric {name!r} is {error_text(Exception(repr(each)), 200)}: expected a number")
    data = None if model is None else serialize_model(model).data
    if data is not None and len(data) > MOST_BYTES:
        raise ValueError(
            f"the model has {len(data):,} bytes, and one of a row at most {MOST_BYTES:,}: write it to a file in the "
            "function, and return metrics alone"
        )
    return data, {name: float(each) for name, each in numbers.items()}


if __name__ == "__main__":
    serve_forks(parent_pipe())
