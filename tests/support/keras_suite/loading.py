"""Loading of Keras's test files from its unpacked source distribution, beside the installed Keras.

A test file imports packages of which it needs most for a few of its tests only (``import jax`` in ``trainer_test.py``).
One that is not installed is replaced by an `Absent` while the file is loaded: the tests that use it fail with the
``ModuleNotFoundError`` that names it, and all others run. So is JAX where it is installed, since the suite is about
TensorFlow: its results are the same everywhere.
"""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["Absent", "load"]

_ALWAYS_ABSENT = ("jax",)


class Absent(ModuleType):
    """A package that is not installed, or anything in it: it can be named, and fails when it is used."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        package = self.__name__.partition(".")[0]
        raise ModuleNotFoundError(f"No module named {package!r} ({self.__name__} was called)", name=package)

    def __mro_entries__(self, bases):
        return ()  # a class inside a test names it as its base

    def __instancecheck__(self, instance):
        return False


class _AbsentPackages(MetaPathFinder, Loader):
    def __init__(self):
        self.names = set(_ALWAYS_ABSENT)

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.partition(".")[0] in self.names else None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        pass


def load(path: Path, name: str) -> ModuleType:
    """Return the module of a test file, under the name that it has in Keras.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        As ``keras.src.trainers.trainer_test``.
    """
    absent = _AbsentPackages()
    before = set(sys.modules)
    conftest = sys.modules.get("conftest")
    sys.modules["conftest"] = _keras_conftest()
    hidden = {each: sys.modules.pop(each) for each in before if each.partition(".")[0] in _ALWAYS_ABSENT}
    sys.meta_path.insert(0, absent)
    try:
        while True:
            try:
                spec = importlib.util.spec_from_file_location(name, path)
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            except ModuleNotFoundError as error:
                package = (error.name or "").partition(".")[0]
                if package in {"", "keras", *absent.names}:
                    raise
                absent.names.add(package)
            else:
                return module
    finally:
        sys.meta_path.remove(absent)
        del sys.modules["conftest"]
        if conftest is not None:
            sys.modules["conftest"] = conftest
        for each in set(sys.modules) - before | set(hidden):
            if (
                each in sys.modules and each.partition(".")[0] in absent.names
            ):  # Keras asks sys.modules whether its user has imported jax
                del sys.modules[each]
        sys.modules.update(hidden)


def _keras_conftest():
    """Return what test files import from Keras's own ``conftest.py``, which the source distribution lacks."""
    import pytest

    def skip_if_backend(name, reason):
        import keras

        return pytest.mark.skipif(keras.backend.backend() == name, reason=reason)

    module = ModuleType("conftest")
    module.skip_if_backend = skip_if_backend
    return module
