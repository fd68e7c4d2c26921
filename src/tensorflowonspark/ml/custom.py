"""The user's own classes and functions that a Keras object is made of: how they are found, and told apart by name.

Keras writes a name in place of a class or a function. All those whose names are in a configuration, and which are in
the object or registered, go into its `Code`.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from types import FunctionType
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import EVERYWHERE, LIBRARIES, Code, described, is_own, pickled

__all__ = ["code_of", "named_lambdas"]

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
