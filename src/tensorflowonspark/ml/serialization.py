"""Models, optimizers and losses in a form that can be sent to the nodes and saved, with the user's own classes.

Keras objects are serialized in Keras's own formats (a ``.keras`` file, or a configuration), since pickles of their
internals differ from version to version; cloudpickle serializes everything else.

Keras writes a name in place of a class or a function. Those whose names are in the configuration, and which are part of
the object or registered, are sent beside it as `Code`.
"""

import io
import json
import numbers
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import (
    EVERYWHERE,
    LIBRARIES,
    Code,
    WithCode,
    is_own,
    pickled,
    qualified_name,
)
from tensorflowonspark.ml.model_bundle import MODEL_FILE, ModelBundle
from tensorflowonspark.ml.refusal import check_keras

_PLAIN = (str, bytes, numbers.Number, np.generic, np.ndarray, type(None))


@dataclass(frozen=True)
class Serialized:
    """A Keras object that is no model."""

    library: str  # ``keras`` or ``tf_keras``
    configuration: Any
    code: Code  # the user's own classes and functions in it


def library_of(value: Any) -> str:
    """Return ``keras`` or ``tf_keras`` for an instance of one of their classes, else an empty string."""
    roots = {kind.__module__.split(".")[0] for kind in type(value).__mro__}
    return next((name for name in LIBRARIES if name in roots), "")


def is_model(value: Any) -> bool:
    """Return whether a value is a model of Keras 3 or of ``tf_keras``."""
    return bool(library_of(value)) and hasattr(value, "fit") and hasattr(value, "layers")


def serialize(value: Any) -> Any:
    """Return a value in which all Keras objects, nested ones included, are bundles of models, or `Serialized`.

    Functions and callbacks, for which Keras has no format, are pickled with their code.
    """
    library = library_of(value)
    if is_model(value):
        return serialize_model(value)
    if library and hasattr(value, "get_config"):
        with named_lambdas(value):
            configuration = import_module(library).saving.serialize_keras_object(value)
            return Serialized(library, configuration, code_of(library, value, configuration))
    if isinstance(value, Mapping):
        return {name: serialize(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(serialize(each) for each in value)
    return value if isinstance(value, _PLAIN) else WithCode(value)


def deserialize(value: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the value that `serialize` was given."""
    if isinstance(value, ModelBundle):
        return load_model(value, custom_objects)
    if isinstance(value, Serialized):
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


def serialize_model(model: Any) -> ModelBundle:
    """Return a model in Keras's file format, with its optimizer's state and the code that it needs."""
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch, named_lambdas(model):
        path = Path(scratch, MODEL_FILE)
        model.save(str(path))
        return bundle_of_file(library_of(model), path.read_bytes(), model)


def bundle_of_file(library: str, data: bytes, model: Any) -> ModelBundle:
    """Return the bytes of a ``.keras`` file with the code that they need, given the model that was loaded from them."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        configuration = json.loads(archive.read("config.json"))
    return ModelBundle(library, data, code=code_of(library, model, configuration))


def load_model(bundle: ModelBundle, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the Keras model of a bundle, loaded.

    Raises SpecError if it is no Keras model; if Keras can't read it, for example because a class of the user's is
    missing; if the file is no zip archive, as Keras has no ``safe_mode`` for others; or if the model is distrusted, and
    `check_keras` refuses this Keras.
    """
    bundle.require_keras()
    if not zipfile.is_zipfile(io.BytesIO(bundle.data)):
        raise SpecError(f"the model is no .keras file, which is a zip archive: it begins with {bundle.data[:8]!r}")
    with tempfile.TemporaryDirectory(prefix="tfos-") as scratch:
        path = Path(scratch, MODEL_FILE)
        path.write_bytes(bundle.data)
        return load_file(bundle, path, custom_objects)


def load_file(
    bundle: ModelBundle, path: Path, custom_objects: Mapping[str, Any] | None = None, *, compiled: bool = True
) -> Any:
    """Return what `load_model` does, given the bundle's data in a file, or a directory with that file's content."""
    library = import_module(bundle.kind)
    if bundle.distrusted:
        check_keras(library.__version__)
    try:
        with (
            library.saving.custom_object_scope({**bundle.code.load(bundle.kind), **(custom_objects or {})}),
            _safe_mode() if bundle.distrusted else nullcontext(),
        ):
            return library.models.load_model(str(path), compile=compiled)
    except (TypeError, ValueError) as error:
        code = f" (with the code of {', '.join(bundle.code.names)})" if bundle.code else ""
        refused = f" Code is refused here, whatever {bundle.kind}.config allows." if bundle.distrusted else ""
        raise SpecError(
            f"{bundle.kind} can't read the model{code}: {error}.{refused} Your own classes and functions are sent "
            "with a model that is given as an object; one that is read from a file needs "
            "customObjects={'Name': Name}"
        ) from error


def _safe_mode() -> AbstractContextManager[None]:
    """Return the scope in which Keras 3 runs no code of a file, whatever the program has enabled in this thread.

    What ``keras.config.enable_unsafe_deserialization`` has set counts more than ``load_model``'s own ``safe_mode``.
    """
    from keras.src.saving.serialization_lib import SafeModeScope

    scope: AbstractContextManager[None] = SafeModeScope(True)
    return scope


_LAMBDA = "<lambda>"
_GRAPH = {"KerasTensor", "Node"}  # classes of Keras that lead from a shared input or layer into other models


def code_of(library: str, value: Any, configuration: Any) -> Code:
    """Return the user's classes and functions that a Keras object needs to be loaded: its configuration names them.

    Raises SpecError if two objects have one name, so that Keras would load one for both.
    """
    saving = import_module(library).saving
    written = {each for each in nested(configuration) if isinstance(each, str)}
    found: dict[str, Any] = {}
    for each in (*_named(saving, configuration), *_own_parts(value)):
        registered = saving.get_registered_name(each)
        if registered not in written and each.__name__ not in written:
            continue
        if isinstance(each, FunctionType) and registered == each.__name__:
            _refuse_name_of_keras(library, each)
        for name in (registered, each.__name__):
            other = found.setdefault(name, each)
            if other is not each and (name == registered or name == saving.get_registered_name(other)):
                raise SpecError(
                    f"the model contains two objects of the name {name!r} ({qualified_name(other)} and "
                    f"{qualified_name(each)}), which Keras can't distinguish in a file: rename one, or register both "
                    "with keras.saving.register_keras_serializable(package=...)"
                )
    return pickled(found) if found else Code()


def _refuse_name_of_keras(library: str, function: Any) -> None:
    for kind in ("activations", "initializers", "losses", "metrics", "regularizers"):
        known = None
        with suppress(ValueError, TypeError):  # there is no such name
            known = getattr(import_module(library), kind).get(function.__name__)
        if known is not None and known is not function:
            raise SpecError(
                f"the function {qualified_name(function)} has the name of {function.__name__!r} in {library}.{kind}, "
                "and Keras can't distinguish them in a file: rename it"
            )


def nested(value: Any) -> Iterator[Any]:
    """Yield a value, and what its mappings, lists and tuples hold, at any depth."""
    yield value
    held = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    for each in held:
        yield from nested(each)


def _named(saving: Any, configuration: Any) -> Iterator[Any]:
    """Yield the user's objects whose full names are in a configuration: by module, or registered."""
    for each in nested(configuration):
        name = each.get("class_name") if isinstance(each, Mapping) else None
        if not isinstance(name, str):
            continue
        registered, module = each.get("registered_name"), each.get("module")
        for found in (
            saving.get_registered_object(registered) if isinstance(registered, str) else None,
            getattr(sys.modules.get(module), name, None) if isinstance(module, str) else None,
        ):
            if isinstance(found, (type, FunctionType)) and not _is_everywhere(found):
                yield found
                break


def _own_parts(value: Any) -> Iterator[Any]:
    """Yield the user's classes and functions in an object, at any depth."""
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each  # referenced, so that no other object gets its id
        if isinstance(each, (type, FunctionType)):
            if not _is_everywhere(each):
                yield each
        elif isinstance(each, Mapping):
            waiting.extend(each.values())
        elif isinstance(each, (list, tuple, set, frozenset)):
            waiting.extend(each)
        elif type(each).__name__ not in _GRAPH and (library_of(each) or is_own(type(each).__module__)):
            waiting.append(type(each))
            # An instance's own `call` or `build` is Keras's wrapper of the class's.
            waiting.extend(
                held
                for name, held in getattr(each, "__dict__", {}).copy().items()
                if not isinstance(getattr(type(each), name, None), FunctionType)
            )


def _is_everywhere(value: Any) -> bool:
    """Return whether a class or a function is Keras's own, or one that every node has and Keras imports by itself."""
    root = str(value.__module__ or "").partition(".")[0]
    return root in EVERYWHERE or (root in sys.stdlib_module_names and root != "__main__")


@contextmanager
def named_lambdas(value: Any) -> Iterator[None]:
    """Name the lambdas in a Keras object while it is serialized, since Keras writes only functions with names whole."""
    found = [
        each
        for each in _own_parts(value)
        if isinstance(each, FunctionType) and each.__name__ == _LAMBDA and is_own(each.__module__)
    ]
    for number, each in enumerate(found):
        each.__name__ = f"lambda_{number}_{sha256(each.__code__.co_code).hexdigest()[:12]}"
    try:
        yield
    finally:
        for each in found:
            each.__name__ = _LAMBDA
