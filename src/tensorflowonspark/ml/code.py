"""Code of the user's own classes and functions, which is sent with the Keras objects that contain them.

Keras writes a name in place of a class or a function, and looks the name up when it loads. This module pickles the
object beside the name. A process that can import the module uses its own; any other uses the code in the pickle.
"""

import functools
import importlib.metadata
import logging
import pickle
import site
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from tensorflowonspark.errors import SpecError

_log = logging.getLogger(__name__)

LIBRARIES = ("keras", "tf_keras")
_INSTALLED = ("site-packages", "dist-packages")
# Installed on every node, though perhaps from a path that is no package directory here.
EVERYWHERE = {"tensorflowonspark", "pyspark", "py4j", *LIBRARIES, "tensorflow", "numpy"}
_by_value = threading.Lock()  # cloudpickle's registry is one for the process


# ---- objects with their code


class WithCode:
    """A value whose pickle any process can load: from the value's modules, or else from their code.

    Examples
    --------
    >>> pickle.loads(pickle.dumps(WithCode({"Scale": len})))
    {'Scale': <built-in function len>}
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a pickle that names the user's modules, and one that contains their code."""
        references = cloudpickle.dumps(self.value)
        values, problem = b"", ""
        if modules := own_modules():
            try:
                values = dumps_by_value(self.value, modules)
            except Exception as error:  # of the objects' own code; the nodes may import them
                problem = f"{type(error).__name__}: {error}"
        return _load_pickle, (references, b"" if values == references else values, problem)


def _load_pickle(references: bytes, values: bytes, problem: str) -> Any:
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


def dumps_by_value(value: Any, modules: Sequence[ModuleType]) -> bytes:
    """Return a pickle of a value that holds the code of these modules which the value uses."""
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


def own_modules() -> list[ModuleType]:
    """Return the loaded top-level modules that belong to no installed distribution."""
    return [
        module
        for name, module in sys.modules.copy().items()
        if "." not in name
        and not name.startswith("__")
        and isinstance(module, ModuleType)
        and module.__name__ == name
        and is_own(name)
    ]


def is_own(module: str | None) -> bool:
    """Return whether a module is the user's: the main program, or a file that no installed distribution owns."""
    root = (module or "__main__").partition(".")[0]
    if root == "__main__":
        return True
    if root in EVERYWHERE or root in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(root), "__file__", None) or next(
        iter(getattr(sys.modules.get(root), "__path__", ())), None
    )
    if file is None:
        return root not in sys.modules  # made by a program (cloudpickle, a notebook), or built in
    return not any(folder in file.replace("\\", "/").split("/") for folder in _INSTALLED) and root not in _linked()


@functools.cache
def distributed() -> frozenset[str]:
    """Return the top-level modules of the distributions that are installed here."""
    return frozenset(importlib.metadata.packages_distributions())


@functools.cache
def _linked() -> frozenset[str]:
    """Return those that are installed from other places, as editable ones are.

    What lies among the installed packages is known by its file: one named ``tests`` there is not the user's ``tests``.
    """
    folders = {Path(each) for each in (*site.getsitepackages(), *map(sysconfig.get_path, ("purelib", "platlib")))}
    there = {found.name.partition(".")[0] for folder in folders if folder.is_dir() for found in folder.iterdir()}
    return distributed() - there


# ---- code by name


@dataclass(frozen=True)
class Code:
    """Classes and functions by the names under which Keras looks them up."""

    names: tuple[str, ...] = ()
    # A pickled dict of the objects by these names; loading it runs the user's code. Empty if there are none.
    pickle: bytes = field(default=b"", repr=False)

    def __bool__(self) -> bool:
        """Return whether there is any code."""
        return bool(self.names)

    @property
    def digest(self) -> str:
        """A hash of the pickle, which names it."""
        return sha256(self.pickle).hexdigest()[:32] if self.pickle else ""

    def load(self, library: str = "") -> dict[str, Any]:
        """Return the objects by name; this runs their code.

        With a library, ``keras`` or ``tf_keras``, they are registered in it under the names that they had.
        """
        if not self.pickle:
            return {}
        known = _loaded.get(self.pickle)
        if known is None:
            known = pickle.loads(self.pickle)
            _remember(self, known)
            _received.add(self.pickle)
        if library:
            _register(import_module(library).saving, known)
        return dict(known)


# The objects of the latest pickles: loading one twice, or in the process that made it, gives the same classes.
_loaded: dict[bytes, dict[str, Any]] = {}
_received: set[bytes] = set()  # pickles from another process, which are sent on unchanged
_MAX_LOADED = 64  # pickles: more than a process uses at a time, but a long search makes one for each trial


def _remember(code: Code, objects: dict[str, Any]) -> None:
    while len(_loaded) >= _MAX_LOADED:
        oldest = next(iter(_loaded.copy()))
        _loaded.pop(oldest, None)
        _received.discard(oldest)
    _loaded[code.pickle] = objects


def code_for(objects: Mapping[str, Any] | None) -> Code:
    """Return the code of ``customObjects``; registered objects have that name as well."""
    if not objects:
        return Code()
    named = dict(objects)
    for each in objects.values():
        for library in LIBRARIES:
            if library in sys.modules and callable(each):
                named.setdefault(import_module(library).saving.get_registered_name(each), each)
    return pickled(named)


def pickled(objects: dict[str, Any]) -> Code:
    """Return the code of objects by name.

    Raises SpecError, which names the object, if one can't be pickled.
    """
    for known in _received.copy():
        held = _loaded.get(known, {})
        if held.keys() >= objects.keys() and all(held[name] is objects[name] for name in objects):
            return Code(tuple(held), known)
    try:
        code = Code(tuple(objects), bytes(cloudpickle.dumps(WithCode(objects))))
    except Exception as error:  # of the objects themselves, or of objects that they refer to
        raise SpecError(
            f"{_culprit(objects)} can't be sent with the model: {error}. A class or a function must not refer to "
            "objects of this process alone, as a Spark session or an open file"
        ) from error
    _remember(code, objects)
    return code


def _culprit(objects: Mapping[str, Any]) -> str:
    for each in objects.values():
        try:
            cloudpickle.dumps(each)
        except Exception:
            return qualified_name(each)
    return ", ".join(objects)


def _register(saving: Any, objects: Mapping[str, Any]) -> None:
    """Register objects under their names in a package (``mine>Scale``), which files of this process contain."""
    for name, each in objects.items():
        package, separator, own = name.partition(">")
        if separator and saving.get_registered_name(each) != name:
            saving.register_keras_serializable(package=package, name=own)(each)


def qualified_name(value: Any) -> str:
    """Return the full name of a class or a function."""
    return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
