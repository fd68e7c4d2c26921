"""Packages that a process has imported already, and that still count as imported when its program imports them."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

import wrapt


def set_aside(*packages: str) -> None:
    """Have an import of packages give the modules that were imported before, and be seen by those who wait for it.

    Hooks that follow an import (``wrapt.register_post_import_hook``) run then, as in a process that did not have them.

    The packages are names at the top, each after those that it imports itself.

    Examples
    --------
    >>> import sys
    >>> import xml.dom.minidom as before
    >>> set_aside("xml")
    >>> "xml.dom.minidom" in sys.modules
    False
    >>> import xml.dom.minidom as after
    >>> after is before
    True
    """
    modules = {name: module for name, module in sys.modules.copy().items() if name.partition(".")[0] in packages}
    for name in modules:
        del sys.modules[name]
    before_files = sys.meta_path.index(PathFinder)  # and after the finders that watch for imports
    sys.meta_path.insert(before_files, _SetAside(packages, modules))


class _SetAside(MetaPathFinder, Loader):
    """Finds the packages, and gives back each with all its modules."""

    def __init__(self, packages: Sequence[str], modules: dict[str, ModuleType]) -> None:
        self._packages = packages
        self._modules = modules
        self._specs = {name: getattr(module, "__spec__", None) for name, module in modules.items()}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        return spec_from_loader(name, self, is_package=True) if name in self._modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__spec__ = self._specs[name]  # which Python has replaced
        for other in self._packages[: self._packages.index(name)]:
            importlib.import_module(other)
        found = {each: self._modules.pop(each) for each in list(self._modules) if each.partition(".")[0] == name}
        sys.modules.update(found)
        for each in found.values():
            if each is not module:  # whose hooks follow
                wrapt.notify_module_loaded(each)
