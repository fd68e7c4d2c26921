"""Import hooks: each repair is made when the module of TensorFlow or Keras that it concerns has been imported.

Nothing is imported that the user's program doesn't import. This module itself imports neither.
"""

import importlib
import inspect
import os
import pkgutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import wrapt

from tensorflowonspark.errors import RequirementError
from tensorflowonspark.keras.private_names import (
    Repair,
    Use,
    attribute_of,
    is_whole,
    problem_of,
    test_modules,
    warn_of_untested,
)
from tensorflowonspark.keras.repairs import CONTEXT, OF_BACKENDS, REPAIRS

_PACKAGE = __name__.rpartition(".")[0]
_SOURCES = "tensorflow.python.autograph.pyct.loader"
_T = TypeVar("_T")


@contextmanager
def setting(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Set a context variable for the duration of a block, for the functions that the block calls."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def replacing(owner: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Have an object of Keras call another function in place of its method, for the duration of a block."""
    object.__setattr__(owner, name, method)  # Keras's own would track the function
    try:
        yield
    finally:
        object.__delattr__(owner, name)


def install(heartbeat_timeout: float = 0.0) -> None:
    """Make the repairs when TensorFlow and Keras are imported, or now if they are already.

    With a `heartbeat_timeout` of 0 seconds TensorFlow's own time-outs stay.
    """

    def start(context: ModuleType) -> None:
        if is_whole(CONTEXT, context):
            _function(CONTEXT)(context, heartbeat_timeout)

    wrapt.register_post_import_hook(start, CONTEXT.module)
    imports = _Imports()
    for backend, table in OF_BACKENDS.items():
        of_module: defaultdict[str, list[Repair]] = defaultdict(list)
        for repair in table:
            of_module[repair.module].append(repair)
        for module, repairs in of_module.items():
            wrapt.register_post_import_hook(partial(imports.repair, backend, repairs), module)
    for library in ("tensorflow", "keras", "tf_keras"):
        wrapt.register_post_import_hook(partial(_test_modules, library), library)


def _test_modules(library: str, _: ModuleType) -> None:
    """Test that a library, which has been imported, has the modules to repair."""
    warn_of_untested(library)
    table = OF_BACKENDS.get(keras_backend(), REPAIRS) if library == "keras" else REPAIRS
    test_modules([repair for repair in table if repair.library == library])


def keras_backend() -> str:
    """Return the backend of Keras 3 in this process: the one that it has, or else will have by the environment."""
    config = sys.modules.get("keras.src.backend.config")
    return str(getattr(config, "_BACKEND", None) or os.environ.get("KERAS_BACKEND") or "tensorflow")


class _Imports:
    """Repairs modules after their import, but never while a module of this package is being imported.

    A program's pickle may import one of them, which imports TensorFlow, which imports Keras: the module that repairs
    Keras is incomplete then. (And TensorFlow ignores errors of that import.) The repair waits until it is complete.
    """

    def __init__(self) -> None:
        self._own_modules = [f"{_PACKAGE}.{each.name}" for each in pkgutil.iter_modules([str(Path(__file__).parent)])]
        self._complete: set[str] = set()
        self._waiting: list[tuple[str, Sequence[Repair], ModuleType]] = []
        for name in self._own_modules:
            wrapt.register_post_import_hook(self._on_import, name)

    def repair(self, backend: str, repairs: Sequence[Repair], module: ModuleType) -> None:
        """Make repairs of a module that has been imported, if it has the names that they need.

        Those of Keras 3 are made if it has their backend.
        """
        of_keras = module.__name__.partition(".")[0] == "keras"
        if backend != keras_backend() and (of_keras or backend != "tensorflow"):
            return
        for number, repair in enumerate(repairs):
            if any(name in sys.modules and name not in self._complete for name in self._own_modules):
                self._waiting.append((backend, repairs[number:], module))
                return
            if is_whole(repair, module):
                _function(repair)(module)

    def _on_import(self, imported: ModuleType) -> None:
        self._complete.add(imported.__name__)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self.repair(*each)


def _function(repair: Repair) -> Callable[..., None]:
    """Return the function that makes a repair, whose module may import TensorFlow."""
    module, name = repair.function.split(":")
    found: Callable[..., None] = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
    return found


def repairing_modules(backend: str) -> list[str]:
    """Return the names of the modules that make the repairs for a backend; none imports Keras."""
    return sorted({f"{_PACKAGE}.{repair.function.partition(':')[0]}" for repair in OF_BACKENDS[backend]})


def keep_sources(directory: str) -> None:
    """Have AutoGraph write its source files to a directory that is removed with this process.

    TensorFlow writes a file for each function that it converts, to the system's temporary directory, and removes them
    when the interpreter exits: those of a killed process, as Spark's Python workers are, would remain.
    """
    wrapt.register_post_import_hook(partial(_redirect, directory), _SOURCES)


def _redirect(directory: str, loader: Any) -> None:
    def named(*args: Any, **options: Any) -> Any:
        existing = directory if directory and Path(directory).is_dir() else None
        return tempfile.NamedTemporaryFile(*args, **{"dir": existing, **options})

    loader.tempfile = SimpleNamespace(**{**vars(tempfile), "NamedTemporaryFile": named})


def wrap(module: ModuleType, name: str, wrapper: Callable[..., Any]) -> None:
    """Wrap a function of a module or class, or a method, as ``"Class.method"``, in the class that defines it.

    `wrapper` is called in its place with the function, its object (None without one), and the arguments of the call.
    A name that is missing is a `RequirementError`: those that a version may lack are declared with their repair, which
    is not made then.
    """
    original = attribute_of(module, name)
    if original is None:
        place = f"{module.__module__}.{module.__qualname__}" if inspect.isclass(module) else module.__name__
        raise RequirementError(problem_of(Use(place, f"the repair in {wrapper.__module__}", (name,)), [name]))
    owner, attribute = place_of(module, name)
    is_static = isinstance(inspect.getattr_static(owner, attribute), staticmethod)
    is_method = inspect.isclass(owner) and not is_static

    # AutoGraph calls it as it calls the original, by whose module it goes; a wrapper of wrapt it would warn of.
    @wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if not is_method:
            return wrapper(original, None, *args, **kwargs)
        instance, *rest = args
        return wrapper(original.__get__(instance), instance, *rest, **kwargs)

    setattr(owner, attribute, staticmethod(replacement) if is_static else replacement)
    if inspect.ismodule(owner):
        _replace_copies(owner, attribute, original)


def _replace_copies(module: ModuleType, name: str, original: Any) -> None:
    """Replace a function also where it is defined, and where another module of the library has imported it by name.

    A module of TensorFlow's public names may be made once more later, of the modules that define them.
    """
    library = module.__name__.partition(".")[0]
    # A copy is made at once; in list(sys.modules.items()) the garbage collector may let another thread import.
    for path, other in sys.modules.copy().items():
        # Not by getattr, which would import a lazy module.
        if path.partition(".")[0] == library and getattr(other, "__dict__", {}).get(name) is original:
            setattr(other, name, getattr(module, name))


def place_of(module: ModuleType, name: str) -> tuple[Any, str]:
    """Return the module or class that defines a function, and its name there.

    Examples
    --------
    >>> import logging
    >>> place_of(logging, "StreamHandler.addFilter")
    (<class 'logging.Filterer'>, 'addFilter')
    """
    path, _, attribute = name.rpartition(".")
    owner = attribute_of(module, path) if path else module
    if inspect.isclass(owner):
        owner = next(each for each in owner.__mro__ if attribute in vars(each))
    return owner, attribute


def is_own(model: Any, name: str) -> bool:
    """Return whether a model of Keras 3 has a function of its own, and not Keras's."""
    from keras import Model  # its import is complete by now

    return inspect.getattr_static(type(model), name) is not inspect.getattr_static(Model, name)


def callbacks_module() -> Any:
    """Return the callbacks of Keras 3, or of ``tf_keras`` where the environment asks for it."""
    if keras_backend() == "jax":
        import keras

        return keras.callbacks
    import tensorflow as tf

    return tf.keras.callbacks
