"""What a user gives as a model, an optimizer or a loss, in a form that can be sent to the nodes and saved.

Keras's own objects travel as Keras writes them (a ``.keras`` file, or a configuration), not as pickles of their
insides, which differ from version to version; everything else as cloudpickle has it.
"""

import json
import numbers
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import Code, WithCode
from tensorflowonspark.ml.custom import code_of, named_lambdas

__all__ = ["Frozen", "freeze", "freeze_file", "freeze_model", "is_model", "library_of", "load_model", "thaw"]

_LIBRARIES = ("keras", "tf_keras")
_FILE = "model.keras"
_PLAIN = (str, bytes, numbers.Number, np.generic, np.ndarray, type(None))


@dataclass(frozen=True)
class Frozen:
    """One of Keras's objects: a whole model as the bytes of its file, or another object as its configuration.

    The code of the user's own classes and functions that it is made of goes with it.
    """

    library: str
    file: bytes = b""
    configuration: Any = None
    code: Code = field(default_factory=Code)


def library_of(value: Any) -> str:
    """Return ``keras`` or ``tf_keras`` for what is made of one of their classes, and else nothing."""
    roots = {kind.__module__.split(".")[0] for kind in type(value).__mro__}
    return next((name for name in _LIBRARIES if name in roots), "")


def is_model(value: Any) -> bool:
    """Whether it is a Keras model, of Keras 3 or of tf_keras."""
    return bool(library_of(value)) and hasattr(value, "fit") and hasattr(value, "layers")


def freeze(value: Any) -> Any:
    """Return a value with all Keras objects in it frozen.

    Functions and callbacks, for which Keras has no form of its own, are pickled with their code.
    """
    library = library_of(value)
    if is_model(value):
        return freeze_model(value)
    if library and hasattr(value, "get_config"):
        with named_lambdas(value):
            configuration = import_module(library).saving.serialize_keras_object(value)
            return Frozen(library, configuration=configuration, code=code_of(library, value, configuration))
    if isinstance(value, Mapping):
        return {name: freeze(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(freeze(each) for each in value)
    return value if isinstance(value, _PLAIN) else WithCode(value)


def thaw(value: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return a value as it was before `freeze`."""
    if isinstance(value, Frozen):
        if value.file:
            return load_model(value, custom_objects)
        saving = import_module(value.library).saving
        with saving.custom_object_scope({**value.code.load(value.library), **(custom_objects or {})}):
            return saving.deserialize_keras_object(value.configuration)
    if isinstance(value, WithCode):
        return value.value
    if isinstance(value, Mapping):
        return {name: thaw(each, custom_objects) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(thaw(each, custom_objects) for each in value)
    return value


def freeze_model(model: Any) -> Frozen:
    """Return a model as Keras's own file format has it, with its optimizer's state, and the code that it needs."""
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch, named_lambdas(model):
        path = Path(scratch, _FILE)
        model.save(str(path))
        return freeze_file(library_of(model), path.read_bytes(), model)


def freeze_file(library: str, data: bytes, model: Any) -> Frozen:
    """Return a file's bytes, with the code that the model which was read from them needs."""
    with tempfile.TemporaryFile(prefix="tfos-") as file:
        file.write(data)
        with zipfile.ZipFile(file) as archive:
            configuration = json.loads(archive.read("config.json"))
    return Frozen(library, file=data, code=code_of(library, model, configuration))


def load_model(frozen: Frozen, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the model that a file's bytes hold.

    Raises
    ------
    SpecError
        If Keras can't read it, as where it lacks a class of the user's.
    """
    library = import_module(frozen.library)
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        path = Path(scratch, _FILE)
        path.write_bytes(frozen.file)
        try:
            with library.saving.custom_object_scope({**frozen.code.load(frozen.library), **(custom_objects or {})}):
                return library.models.load_model(str(path))
        except (TypeError, ValueError) as error:
            held = f" (the model brings the code of {', '.join(frozen.code.names)})" if frozen.code else ""
            raise SpecError(
                f"{frozen.library} can't read the model{held}: {error}. Classes and functions of your own travel with "
                "a model that is given as an object; one that is read from a file needs customObjects={'Name': Name}"
            ) from error
