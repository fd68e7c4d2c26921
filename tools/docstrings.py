"""Check where docstrings have tables: sections as NumPy has them stand in those that users read, and in no other.

Users read the reference, and what ``help`` and the command line make of declarations. Everything else is read in an
editor, beside the code, where types and names stand already: there a sentence says what they don't.

Usage: ``python -m tools.docstrings``.
"""

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
SOURCE = Path(__file__).parent.parent / "src"
PACKAGES = ("", ".frames", ".keras", ".ml", ".ml.mlflow", ".storage")
OF_2X = "tensorflowonspark.v2"
_TABLE = re.compile(r"^ *(Parameters|Attributes|Returns|Yields|Raises)\n *-{5,}$", re.MULTILINE)
_READERS = {"entries_of", "keywords_of", "shows", "takes", "texts_of"}  # of declarations.py


def public() -> Iterator[tuple[str, str]]:
    """Yield module and qualified name of what the reference describes, and of the classes that it inherits from."""
    for package in PACKAGES:
        module = importlib.import_module(f"tensorflowonspark{package}")
        for name in module.__all__:
            item: Any = inspect.unwrap(getattr(module, name))
            for each in inspect.getmro(item) if inspect.isclass(item) else [item]:
                yield getattr(each, "__module__", ""), getattr(each, "__qualname__", "")


def declared(tree: ast.Module) -> set[str]:
    """Return the names of declarations whose docstrings a module reads."""
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    read = [each for each in calls if isinstance(each.func, ast.Name) and each.func.id in _READERS]
    return {one.id for each in read for one in ast.walk(each) if isinstance(one, ast.Name)} - _READERS


def bases(tree: ast.Module, names: set[str]) -> set[str]:
    """Return the names of the classes from which declarations of a module inherit their docstrings."""
    classes = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and each.name in names]
    return {base.id for each in classes for base in each.bases if isinstance(base, ast.Name)}


def documented(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, str, int]]:
    """Yield qualified name, docstring and line of the functions and classes of a module."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + each.name, ast.get_docstring(each) or "", each.lineno
            yield from documented(each, f"{prefix}{each.name}.")


def main() -> int:
    """Print each docstring with a table that no user reads; return how many there are, at most 1."""
    paths = sorted((SOURCE / "tensorflowonspark").rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in paths}
    names = set.union(*map(declared, trees.values()))
    names |= {base for tree in trees.values() for base in bases(tree, names)}
    users = set(public())
    found = False
    for path, tree in trees.items():
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for name, text, line in documented(tree):
            table = _TABLE.search(text)
            read = module.startswith(OF_2X) or name.partition(".")[0] in names
            read = read or {(module, name), (module, name.rpartition(".")[0])} & users
            if table and not read:
                found = True
                print(f"{path.relative_to(SOURCE.parent)}:{line}: {name} has a table of {table[1]}, and is not public")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
