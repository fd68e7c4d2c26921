"""What a user gives as a model, an optimizer or a loss, in a form that can be sent to the nodes and saved.

Keras's own objects travel as Keras writes them (a ``.keras`` file, or a configuration), not as pickles of their
insides, which differ from version to version; everything else as cloudpickle has it.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tensorflowonspark.errors import SpecError

__all__ = ["Frozen", "freeze", "is_model", "library_of", "load_model", "model_bytes", "thaw"]

_LIBRARIES = ("keras", "tf_keras")
_FILE = "model.keras"


@dataclass(frozen=True)
class Frozen:
    """One of Keras's objects: a whole model as the bytes of its file, or another object as its configuration."""

    library: str
    file: bytes = b""
    configuration: Any = None


def library_of(value: Any) -> str:
    """Return ``keras`` or ``tf_keras`` for what is made of one of their classes, and else nothing."""
    roots = {kind.__module__.split(".")[0] for kind in type(value).__mro__}
    return next((name for name in _LIBRARIES if name in roots), "")


def is_model(value: Any) -> bool:
    """Whether it is a Keras model, of Keras 3 or of tf_keras."""
    return bool(library_of(value)) and hasattr(value, "fit") and hasattr(value, "layers")


def freeze(value: Any) -> Any:
    """Return a value with all Keras objects in it frozen.

    Callbacks stay as they are: Keras has no form of its own for them.
    """
    library = library_of(value)
    if is_model(value):
        return Frozen(library, file=model_bytes(value))
    if library and hasattr(value, "get_config"):
        return Frozen(library, configuration=import_module(library).saving.serialize_keras_object(value))
    if isinstance(value, Mapping):
        return {name: freeze(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(freeze(each) for each in value)
    return value


def thaw(value: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return a value as it was before `freeze`."""
    if isinstance(value, Frozen):
        if value.file:
            return load_model(value.library, value.file, custom_objects)
        saving = import_module(value.library).saving
        return saving.deserialize_keras_object(value.configuration, custom_objects=dict(custom_objects or {}))
    if isinstance(value, Mapping):
        return {name: thaw(each, custom_objects) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(thaw(each, custom_objects) for each in value)
    return value


def model_bytes(model: Any) -> bytes:
    """Return a model as Keras's own file format has it, with its optimizer's state."""
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        path = Path(scratch, _FILE)
        model.save(str(path))
        return path.read_bytes()


def load_model(library: str, data: bytes, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the model that a file's bytes hold.

    Raises
    ------
    SpecError
        If Keras can't read it, as where it lacks a class of the user's.
    """
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        path = Path(scratch, _FILE)
        path.write_bytes(data)
        try:
            return import_module(library).models.load_model(str(path), custom_objects=dict(custom_objects or {}))
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"{library} can't read the model: {error}. Classes and functions of your own belong into "
                "customObjects={'Name': Name}, or must be registered and importable on the executors"
            ) from error
