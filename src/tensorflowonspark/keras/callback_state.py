"""What callbacks remember from epoch to epoch, as a file of a checkpoint.

Of Keras's own callbacks, and of classes that derive from them, the attributes below are kept; of any other callback
what its ``get_state`` returns, which a restart passes to its ``set_state``. Settings, such as a patience, are not kept:
those of the program that resumes count.

The file is a zip archive of JSON and of arrays, since whoever can write a directory must not run code by it.
"""

import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.archives import open_archive, write_archive

_FILE, _STATES = "callbacks.zip", "states.json"
_BATCHES = ("_batches_seen_since_last_saving", "_last_batch_seen")
REMEMBERED = {  # of Keras 3 and tf_keras, which have some each
    "BackupAndRestore": (*_BATCHES, "_batches_count", "_current_epoch"),
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": (*_BATCHES, "best", "epochs_since_last_save"),
    "OrbaxCheckpoint": (*_BATCHES, "best", "_total_batches_seen"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
}


class CallbackStates:
    """The states of the callbacks of one ``fit``.

    Which of two of one class is which depends on the order in which they are called.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        seen: Counter[str] = Counter()
        self._callbacks: dict[str, Any] = {}
        self._found: dict[str, Any] = {}  # what was read
        for each in callbacks:
            name = type(each).__name__
            self._callbacks[f"{name} {seen[name]}"] = each
            seen[name] += 1

    def check(self) -> None:
        """Raise `SpecError` if a state holds a value of a type that can't be kept."""
        self._encoded([])

    def write(self, directory: str) -> None:
        """Write the states to a directory of this machine."""
        arrays: list[Any] = []
        states = self._encoded(arrays)
        as_bytes = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in arrays)
        write_archive(Path(directory, _FILE), _STATES, states, as_bytes, lambda entry, each: entry.write(each.data))

    def read(self, directory: str, source: str) -> None:
        """Read the states from a directory of this machine; a checkpoint of an earlier version has none.

        A damaged file is a `CheckpointError`, with the checkpoint's path, `source`.
        """
        if Path(directory, _FILE).exists():
            with open_archive(directory, _FILE, source) as archive:
                states = json.loads(archive.read(_STATES))
                self._found = {name: _decoded(each, archive) for name, each in states.items()}

    def set(self) -> None:
        """Give the callbacks the states that were read, after they have begun with their own."""
        for name in self._found.keys() & self._callbacks.keys():
            _set_state(self._callbacks[name], self._found[name])

    def _encoded(self, arrays: list[Any]) -> dict[str, Any]:
        return {name: _encoded(_state(each), arrays, each) for name, each in self._callbacks.items()}


def has_stopped(callbacks: Iterable[Any]) -> bool:
    """Return whether an ``EarlyStopping`` has ended the training, with the patience that it has now."""
    stopping = [each for each in callbacks if "EarlyStopping" in _keras_names(each)]
    return any(each.stopped_epoch and each.wait >= each.patience for each in stopping)


def _keras_names(callback: Any) -> list[str]:
    """Return the names of Keras's classes from which a callback derives."""
    kinds = type(callback).__mro__
    return [kind.__name__ for kind in kinds if kind.__module__.split(".")[0] in ("keras", "tf_keras")]


def _remembered(callback: Any) -> list[str]:
    """Return the attributes of a callback that are kept."""
    names = {each for kind in _keras_names(callback) for each in REMEMBERED.get(kind, ())}
    return sorted(each for each in names if hasattr(callback, each))


def _state(callback: Any) -> dict[str, Any]:
    kinds = _keras_names(callback)
    state: dict[str, Any] = {"keras": {each: getattr(callback, each) for each in _remembered(callback)}}
    if _rewrites(callback, kinds):
        state["text"] = Path(callback.filename).read_text()
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        state["own"] = callback.get_state()
    return state


def _set_state(callback: Any, state: dict[str, Any]) -> None:
    for name in state["keras"].keys() & _remembered(callback):  # and no setting, such as a path
        setattr(callback, name, state["keras"][name])
    if state.get("text") and _rewrites(callback, _keras_names(callback)):
        callback.csv_file.write(state["text"])
        callback.csv_file.flush()
        callback.append_header = False
    if "own" in state and hasattr(callback, "set_state"):
        callback.set_state(state["own"])


def _rewrites(callback: Any, kinds: Sequence[str]) -> bool:
    """Return whether a callback is a ``CSVLogger`` that has emptied its file when ``fit`` began."""
    return "CSVLogger" in kinds and not callback.append and Path(callback.filename).is_file()


def _encoded(value: Any, arrays: list[Any], callback: Any) -> Any:
    """Return a value as JSON with its type; arrays are appended to a list."""
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [_encoded(each, arrays, callback) for each in value]]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return ["dict", {key: _encoded(each, arrays, callback) for key, each in value.items()}]
    array = np.asarray(value) if hasattr(value, "__array__") else None
    if array is None or array.dtype.hasobject:
        raise SpecError(
            f"the state of the callback {type(callback).__name__} holds a {type(value).__name__}, which a checkpoint "
            "can't keep: get_state may return numbers, strings, None, arrays, and lists and dicts of these whose keys "
            "are strings"
        )
    arrays.append(array)
    dtype = array.dtype.name if array.dtype.kind == "V" else array.dtype.str  # bfloat16 has no other
    return ["array", [len(arrays) - 1, dtype, list(array.shape)]]


def _decoded(encoded: Any, archive: zipfile.ZipFile) -> Any:
    kind, value = encoded
    if kind == "array":
        number, dtype, shape = value
        return np.frombuffer(archive.read(str(number)), np.dtype(dtype)).reshape(shape).copy()
    if kind == "dict":
        return {key: _decoded(each, archive) for key, each in value.items()}
    if kind in ("list", "tuple"):
        values = [_decoded(each, archive) for each in value]
        return tuple(values) if kind == "tuple" else values
    return value
