"""Classes and functions of the user's own that a Keras object is made of, and their code, which is sent with it.

Keras writes a name in place of a class or a function, and looks it up when it reads. Here the object itself is pickled
beside the name. A process that can import the module takes its own; any other takes the code from the pickle.
"""

import functools
import importlib.metadata
import pickle
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from types import ModuleType
from typing import Any

import cloudpickle

from tensorflowonspark.errors import SpecError

__all__ = ["EVERYWHERE", "LIBRARIES", "Code", "WithCode", "code_for", "described", "is_own", "pickled"]

LIBRARIES = ("keras", "tf_keras")
_INSTALLED = ("site-packages", "dist-packages")
# Installed on every node, though perhaps from a path that is no package directory here.
EVERYWHERE = {"tensorflowonspark", "pyspark", "py4j", *LIBRARIES, "tensorflow", "numpy"}
_by_value = threading.Lock()  # cloudpickle's registry is one for the process


# ---- objects with their code


class WithCode:
    """Pickles as an object that any process can read: from the object's modules, or else from their code.

    Examples
    --------
    >>> pickle.loads(pickle.dumps(WithCode({"Scale": len})))
    {'Scale': <built-in function len>}
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how it is read: a pickle that names the user's modules, and one that holds their code."""
        references = cloudpickle.dumps(self.value)
        values, problem = b"", ""
        if modules := _own_modules():
            try:
                values = _dumps_by_value(self.value, modules)
            except Exception as error:  # pickling runs code of the objects; they may be importable on the nodes
                problem = f"{type(error).__name__}: {error}"
        return _read, (references, b"" if values == references else values, problem)


def _read(references: bytes, values: bytes, problem: str) -> Any:
    try:
        return pickle.loads(references)
    except (ImportError, AttributeError) as error:
        if values:
            return pickle.loads(values)
        if problem:
            raise ImportError(
                f"{error}, and its code can't be sent ({problem}): install the module on the executors, or ship it "
                "with --py-files"
            ) from error
        raise


def _dumps_by_value(value: Any, modules: Sequence[ModuleType]) -> bytes:
    with _by_value:
        known = cloudpickle.list_registry_pickle_by_value()
        added = [module for module in modules if module.__name__ not in known]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(value))
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


def _own_modules() -> list[ModuleType]:
    """Return the loaded packages and modules that belong to no installed distribution."""
    return [
        module
        for name, module in list(sys.modules.items())
        if "." not in name
        and not name.startswith("__")
        and isinstance(module, ModuleType)
        and module.__name__ == name
        and is_own(name)
    ]


def is_own(module: str | None) -> bool:
    """Whether a module is the user's: the main program, or a file that no installed distribution owns."""
    root = (module or "__main__").partition(".")[0]
    if root == "__main__":
        return True
    if root in EVERYWHERE or root in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(root), "__file__", None) or next(
        iter(getattr(sys.modules.get(root), "__path__", ())), None
    )
    if file is None:
        return root not in sys.modules  # made by a program, as cloudpickle and notebooks do; or built in
    return not any(place in file.replace("\\", "/").split("/") for place in _INSTALLED) and root not in _distributed()


@functools.cache
def _distributed() -> frozenset[str]:
    return frozenset(importlib.metadata.packages_distributions())


# ---- what a Keras object needs


@dataclass(frozen=True)
class Code:
    """Classes and functions by the names under which Keras looks for them.

    Attributes
    ----------
    names : tuple of str
        The names.
    pickle : bytes
        A dict of the objects by these names; reading it runs the user's code. Empty if there are none.
    """

    names: tuple[str, ...] = ()
    pickle: bytes = field(default=b"", repr=False)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.names)

    @property
    def digest(self) -> str:
        """A name for the contents."""
        return sha256(self.pickle).hexdigest()[:32] if self.pickle else ""

    def load(self, library: str = "") -> dict[str, Any]:
        """Return the objects by name, which runs their code.

        With a library (``keras`` or ``tf_keras``) they are registered there under the names that they had.
        """
        if not self.pickle:
            return {}
        known = _held_as.get(self.pickle)
        if known is None:
            known = pickle.loads(self.pickle)
            _remember(self, known)
            _read_here.add(self.pickle)
        if library:
            _register(import_module(library).saving, known)
        return dict(known)


# The objects of the latest pickles: to read one twice, or where it was made, gives the same classes.
_held_as: dict[bytes, dict[str, Any]] = {}
_read_here: set[bytes] = set()  # those that come from another process, and go on as they came
_MOST_HELD = 64


def _remember(code: Code, objects: dict[str, Any]) -> None:
    while len(_held_as) >= _MOST_HELD:
        oldest = next(iter(_held_as))
        del _held_as[oldest]
        _read_here.discard(oldest)
    _held_as[code.pickle] = objects


def code_for(objects: Mapping[str, Any] | None) -> Code:
    """Return objects that the user names (``customObjects``) as code; registered ones under that name, too."""
    if not objects:
        return Code()
    named = dict(objects)
    for each in objects.values():
        for library in LIBRARIES:
            if library in sys.modules and callable(each):
                named.setdefault(import_module(library).saving.get_registered_name(each), each)
    return pickled(named)


def pickled(objects: dict[str, Any]) -> Code:
    """Return objects by their names as code.

    Raises
    ------
    SpecError
        If one can't be pickled; it names it.
    """
    for known in _read_here:
        held = _held_as[known]
        if held.keys() >= objects.keys() and all(held[name] is objects[name] for name in objects):
            return Code(tuple(held), known)
    try:
        code = Code(tuple(objects), bytes(cloudpickle.dumps(WithCode(objects))))
    except Exception as error:  # of the objects' own, or of what they refer to
        raise SpecError(
            f"{_culprit(objects)} can't be sent with the model: {error}. A class or a function must not refer to what "
            "lives in this process alone, as a Spark session or an open file"
        ) from error
    _remember(code, objects)
    return code


def _culprit(objects: Mapping[str, Any]) -> str:
    for each in objects.values():
        try:
            cloudpickle.dumps(each)
        except Exception:
            return described(each)
    return ", ".join(objects)


def _register(saving: Any, objects: Mapping[str, Any]) -> None:
    """Register objects under their names in a package (``mine>Scale``), by which a file written here names them."""
    for name, each in objects.items():
        package, separator, own = name.partition(">")
        if separator and saving.get_registered_name(each) != name:
            saving.register_keras_serializable(package=package, name=own)(each)


def described(value: Any) -> str:
    """Return the full name of a class or a function."""
    return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
