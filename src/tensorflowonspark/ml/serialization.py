"""Models, optimizers and losses in a form that can be sent to the nodes and saved, with the user's own classes.

Keras's own objects travel as Keras writes them (a ``.keras`` file, or a configuration), not as pickles of their
insides, which differ from version to version; everything else as cloudpickle has it.

Keras writes a name in place of a class or a function. All those whose names are in a configuration, and which are in
the object or registered, go into its `Code`.
"""

import json
import numbers
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import EVERYWHERE, LIBRARIES, Code, WithCode, described, is_own, pickled

__all__ = [
    "Serialized",
    "code_of",
    "deserialize",
    "is_model",
    "library_of",
    "load_model",
    "named_lambdas",
    "serialize",
    "serialize_file",
    "serialize_model",
]

_LIBRARIES = ("keras", "tf_keras")
_FILE = "model.keras"
_PLAIN = (str, bytes, numbers.Number, np.generic, np.ndarray, type(None))


@dataclass(frozen=True)
class Serialized:
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


def serialize(value: Any) -> Any:
    """Return a value with all Keras objects in it frozen.

    Functions and callbacks, for which Keras has no form of its own, are pickled with their code.
    """
    library = library_of(value)
    if is_model(value):
        return serialize_model(value)
    if library and hasattr(value, "get_config"):
        with named_lambdas(value):
            configuration = import_module(library).saving.serialize_keras_object(value)
            return Serialized(library, configuration=configuration, code=code_of(library, value, configuration))
    if isinstance(value, Mapping):
        return {name: serialize(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(serialize(each) for each in value)
    return value if isinstance(value, _PLAIN) else WithCode(value)


def deserialize(value: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return a value as it was before `serialize`."""
    if isinstance(value, Serialized):
        if value.file:
            return load_model(value, custom_objects)
        saving = import_module(value.library).saving
        with saving.custom_object_scope({**value.code.load(value.library), **(custom_objects or {})}):
            return saving.deserialize_keras_object(value.configuration)
    if isinstance(value, WithCode):
        return value.value
    if isinstance(value, Mapping):
        return {name: deserialize(each, custom_objects) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(deserialize(each, custom_objects) for each in value)
    return value


def serialize_model(model: Any) -> Serialized:
    """Return a model as Keras's own file format has it, with its optimizer's state, and the code that it needs."""
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch, named_lambdas(model):
        path = Path(scratch, _FILE)
        model.save(str(path))
        return serialize_file(library_of(model), path.read_bytes(), model)


def serialize_file(library: str, data: bytes, model: Any) -> Serialized:
    """Return a file's bytes, with the code that the model which was read from them needs."""
    with tempfile.TemporaryFile(prefix="tfos-") as file:
        file.write(data)
        with zipfile.ZipFile(file) as archive:
            configuration = json.loads(archive.read("config.json"))
    return Serialized(library, file=data, code=code_of(library, model, configuration))


def load_model(frozen: Serialized, custom_objects: Mapping[str, Any] | None = None) -> Any:
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


_LAMBDA = "<lambda>"
_GRAPH = {"KerasTensor", "Node"}  # of Keras's: they lead from a shared input or layer into other models


def code_of(library: str, value: Any, configuration: Any) -> Code:
    """Return the classes and functions that reading a Keras object needs, and that are not Keras's own.

    Parameters
    ----------
    library : str
        ``keras`` or ``tf_keras``.
    value : object
        A model, layer, optimizer, loss or metric.
    configuration : object
        What Keras writes of it: only names that are in it are needed.

    Raises
    ------
    SpecError
        If a name stands for two objects, of which Keras would take one for both.
    """
    saving = import_module(library).saving
    written = set(_strings(configuration))
    found: dict[str, Any] = {}
    for each in (*_named(saving, configuration), *_held(value)):
        registered = saving.get_registered_name(each)
        if registered not in written and each.__name__ not in written:
            continue
        if isinstance(each, FunctionType) and registered == each.__name__:
            _refuse_name_of_keras(library, each)
        for name in (registered, each.__name__):
            other = found.setdefault(name, each)
            if other is not each and (name == registered or name == saving.get_registered_name(other)):
                raise SpecError(
                    f"the model holds two objects of the name {name!r} ({described(other)} and {described(each)}), "
                    "which Keras can't tell apart in a file: rename one, or register both with "
                    "keras.saving.register_keras_serializable(package=...)"
                )
    return pickled(found) if found else Code()


def _refuse_name_of_keras(library: str, function: Any) -> None:
    for kind in ("activations", "initializers", "losses", "metrics", "regularizers"):
        known = None
        with suppress(ValueError, TypeError):  # it has no such name
            known = getattr(import_module(library), kind).get(function.__name__)
        if known is not None and known is not function:
            raise SpecError(
                f"the function {described(function)} has the name of {function.__name__!r} in {library}.{kind}, and "
                "Keras can't tell them apart in a file: rename it"
            )


def _strings(configuration: Any) -> Iterator[str]:
    """Yield all strings in a configuration."""
    if isinstance(configuration, str):
        yield configuration
    elif isinstance(configuration, Mapping):
        for each in configuration.values():
            yield from _strings(each)
    elif isinstance(configuration, (list, tuple)):
        for each in configuration:
            yield from _strings(each)


def _named(saving: Any, configuration: Any) -> Iterator[Any]:
    """Yield the user's objects that a configuration names in full: by module, or registered."""
    if isinstance(configuration, Mapping):
        name, registered = configuration.get("class_name"), configuration.get("registered_name")
        if isinstance(name, str):
            module = configuration.get("module")
            for found in (
                saving.get_registered_object(registered) if isinstance(registered, str) else None,
                getattr(sys.modules.get(module), name, None) if isinstance(module, str) else None,
            ):
                if isinstance(found, (type, FunctionType)) and not _is_everywhere(found):
                    yield found
                    break
        for each in configuration.values():
            yield from _named(saving, each)
    elif isinstance(configuration, (list, tuple)):
        for each in configuration:
            yield from _named(saving, each)


def _held(value: Any) -> Iterator[Any]:
    """Yield the user's classes and functions that an object is made of, however deep in it."""
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each  # kept, so that no other object gets its number
        if isinstance(each, (type, FunctionType)):
            if not _is_everywhere(each):
                yield each
        elif isinstance(each, Mapping):
            waiting.extend(each.values())
        elif isinstance(each, (list, tuple, set, frozenset)):
            waiting.extend(each)
        elif type(each).__name__ not in _GRAPH and (_is_of_keras(each) or is_own(type(each).__module__)):
            waiting.append(type(each))
            # An instance's own `call` or `build` is Keras's wrapper of the class's.
            waiting.extend(
                held
                for name, held in getattr(each, "__dict__", {}).items()
                if not isinstance(getattr(type(each), name, None), FunctionType)
            )


def _is_everywhere(value: Any) -> bool:
    """Whether a class or a function is Keras's, or another that every node has and Keras finds by itself."""
    root = str(value.__module__ or "").partition(".")[0]
    return root in EVERYWHERE or (root in sys.stdlib_module_names and root != "__main__")


def _is_of_keras(value: Any) -> bool:
    return any(kind.__module__.partition(".")[0] in LIBRARIES for kind in type(value).__mro__)


@contextmanager
def named_lambdas(value: Any) -> Iterator[None]:
    """Give the lambdas in a Keras object names while it is written, as Keras writes only functions with names whole."""
    found = [
        each
        for each in _held(value)
        if isinstance(each, FunctionType) and each.__name__ == _LAMBDA and is_own(each.__module__)
    ]
    for number, each in enumerate(found):
        each.__name__ = f"lambda_{number}_{sha256(each.__code__.co_code).hexdigest()[:12]}"
    try:
        yield
    finally:
        for each in found:
            each.__name__ = _LAMBDA
