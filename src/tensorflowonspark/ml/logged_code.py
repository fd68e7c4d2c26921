"""Code that is logged with a model: the modules of this package that apply it, and the user's own, as plain source.

A model is served where this package is not installed, and may be where it is, in another version. So its modules are
logged under a name that is theirs alone: it has a hash of their source. The user's modules keep their names, which the
model's classes have.
"""

import ast
import functools
import pickletools
import re
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.util import find_spec, resolve_name
from typing import Any

import cloudpickle

from tensorflowonspark.errors import SpecError
from tensorflowonspark.ml.code import distributed, dumps_by_value, is_own, own_modules
from tensorflowonspark.ml.served import __name__ as _served

_PACKAGE = "tensorflowonspark"
_NOT_SERVED = {_PACKAGE, "pyspark", "py4j"}
_IMPORT = re.compile(rf"^(\s*(?:from|import) ){_PACKAGE}\b", re.MULTILINE)


@functools.cache
def own_code() -> tuple[str, dict[str, str]]:
    """Return the name of the module that MLflow loads, and the sources of this package that it needs, by file."""
    files, _ = sources([_served], lambda name: name.partition(".")[0] == _PACKAGE)
    name = f"tfos_{sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]}"
    renamed = {file.replace(_PACKAGE, name, 1): _IMPORT.sub(rf"\1{name}", text) for file, text in files.items()}
    return _served.replace(_PACKAGE, name, 1), renamed


def users_code(value: Any) -> tuple[bytes, dict[str, str], set[str]]:
    """Return a pickle of the user's classes and functions that needs no module of this package or Spark's.

    With it the sources of the user's modules that it refers to, by file, and the names of the other modules that these
    need. If one of them imports this package or pyspark, the code that is used of it is in the pickle instead. Raises
    SpecError if that uses them too.
    """
    data = bytes(cloudpickle.dumps(value))
    files, others = sources(
        _modules_in(data), lambda name: is_own(name) and name.partition(".")[0] not in distributed()
    )
    if others & _NOT_SERVED:
        data = dumps_by_value(value, own_modules())
        files, others = {}, {name.partition(".")[0] for name in _modules_in(data) if not is_own(name)}
    if used := others & _NOT_SERVED:
        names = ", ".join(value) if isinstance(value, dict) else getattr(value, "__name__", repr(value))
        raise SpecError(
            f"the code of the model ({names}) uses {', '.join(sorted(used))}, and a logged model is served without: "
            "take what it uses of it out of these classes and functions"
        )
    return data, files, others


def sources(names: list[str], is_taken: Callable[[str], bool]) -> tuple[dict[str, str], set[str]]:
    """Return the sources of modules, and of those that they import, by file, and the packages of others.

    The modules that `is_taken` are followed; the others, of which Python's own are left out, are not. Raises SpecError
    if a module has no source.
    """
    files: dict[str, str] = {}
    others: set[str] = set()
    waiting, seen = [*names], set()
    while waiting:
        name = waiting.pop()
        parent, root = name.rpartition(".")[0], name.partition(".")[0]
        if name in seen or root == "__main__":
            continue
        seen.add(name)
        if not is_taken(name):
            others |= {root} - sys.stdlib_module_names
            continue
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):  # the parent is a module, and this a name in it; or a program has made it
            spec = None
        waiting += [parent] if parent else []
        if spec is None:
            continue
        package, origin = spec.submodule_search_locations is not None, spec.origin or ""
        if origin and not origin.endswith(".py"):
            raise SpecError(f"the module {name}, which the model needs, has no source to log ({origin})")
        # A package of a namespace has no file; others may lie in an archive.
        text = spec.loader.get_data(origin).decode() if origin else ""  # type: ignore[union-attr]
        files[f"{name.replace('.', '/')}{'/__init__' if package else ''}.py"] = text
        waiting += _imports(ast.parse(text), name if package else parent)
    return files, others


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that a module of a package imports anywhere, and the names in them, which may be modules."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (base, *(f"{base}.{each.name}" for each in node.names))
        elif not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            yield from _imports(node, package)


def _modules_in(data: bytes) -> list[str]:
    """Return the imported modules whose names a pickle has."""
    texts = {argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)}
    return sorted(texts & set(sys.modules.copy()))
