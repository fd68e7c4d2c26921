"""The time in which this process imports TensorFlow, or Keras on JAX."""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from tensorflowonspark.keras.waiting import Stopwatch

_importing = Stopwatch()


def import_seconds() -> float:
    """Return the seconds of the import so far."""
    return _importing.read(time.monotonic())


def measure_import(name: str) -> None:
    """Measure the import of a module, which this process has not imported yet."""
    sys.meta_path.insert(sys.meta_path.index(PathFinder), _MeasuringFinder(name))


class _MeasuringFinder(MetaPathFinder):
    """Finds one module as Python does, and measures its execution: a program may look for it without importing it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec, and None for other modules."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(_execute, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _execute(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    _importing.start(time.monotonic())
    try:
        execute(module)
    finally:
        _importing.stop(time.monotonic())
