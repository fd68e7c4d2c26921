"""The private names of TensorFlow and Keras in the source, declared and not.

``python -m tests.support.private_uses`` prints both lists. The declared ones are those of
``tensorflowonspark.keras.repairs``. Those that are used are found in the syntax of the source:

- modules that are not public, as ``keras.src.backend`` and ``tensorflow.python.eager.context``, which are imported, or
  named in a string, with the names that are taken from them;
- attributes that begin with an underscore, read or set on anything or named in a string, which neither this module nor
  one of ours that it imports defines.

A public name that is reached by a public path, as ``keras.Model.fit``, is no private name.
"""

import ast
import re
from collections import defaultdict
from functools import cache, lru_cache

from tensorflowonspark.keras import private_names, repairs
from tests.support.paths import ROOT

_SOURCE = ROOT / "src"
_DECLARING = "tensorflowonspark.keras.repairs"
_LIBRARIES = ("keras", "tensorflow", "tf_keras")
_PRIVATE_PACKAGES = (
    "keras.src",
    "tensorflow.compiler",
    "tensorflow.core",
    "tensorflow.dtensor.python",
    "tensorflow.python",
    "tf_keras.src",
)
# Folders of ours that import neither library: their private names are those of pyspark, Optuna and others.
_WITHOUT_BOTH = ("cli", "columns", "driver", "frames", "search", "storage", "task", "tfrecords", "transport", "v2")
# Private names of other libraries in the other folders, and names in strings that are no names of a library.
_OF_OTHERS = {
    "Python": (
        "_asdict", "_clear", "_current_frames", "_exit", "_getframe", "_global_shutdown", "_registered_with_atexit",
        "_registry", "_replace", "_run_exitfuncs", "_shutdown", "_threading_atexits",
    ),
    "pyspark": (
        "_copyValues", "_dummy", "_get_metadata_to_save", "_jbroadcast", "_jsc", "_jvm", "_paramMap", "_path",
        "_resetUid", "_set", "_setDefault", "_SUCCESS",
    ),
    "JAX": ("_src",),
    "MLflow": ("_log_model_allowlist",),
    "pyiceberg": ("_import_file_io",),
    "the format of TensorFlow's graphs": ("_gradient_op_type",),
    "ours, by a protocol": (
        "_best", "_feature_columns", "_in_first_pass", "_meter", "_record", "_restore", "_resume_at", "_was_ended",
    ),
}  # fmt: skip
_NAME = re.compile(r"(\w|\{\w+\})+")  # a part of an attribute's path, in an f-string with the names of variables
_OUR_PREFIXES = ("_tensorflowonspark_", "_tfos_")  # of attributes that we set on objects of others


def declared():
    """Return the declared private names of both libraries, as ``"module.Class.method"``, sorted."""
    tables = [each if isinstance(each, tuple) else (each,) for each in vars(repairs).values()]
    uses = [each for table in tables for each in table if isinstance(each, private_names.Use)]
    names = {
        f"{use.module}.{name}"
        for use in uses
        if use.library in _LIBRARIES
        for name in use.names
        if not name.startswith("tf.")  # public, wherever it is reached
    }
    return sorted(name for name in names if _is_private(name))


@cache
def undeclared():
    """Return the places of each private name of both libraries that is used and not declared, by its name.

    A module stands for itself where no name is taken from it. Of attributes the class is unknown.
    """
    known = declared()
    parts = {part for name in known for part in name.split(".")}
    found = defaultdict(list)
    for name, place in _used():
        is_attribute = name.startswith("_")
        if name not in parts if is_attribute else not any(f"{each}.".startswith(f"{name}.") for each in known):
            found[name].append(place)
    return {name: found[name] for name in sorted(found)}


def used_in(tree, defined=frozenset()):
    """Yield each private name that a syntax tree uses, and its line.

    Parameters
    ----------
    tree : ast.AST
        Of a module.
    defined : set of str
        The names that the modules of ours that it imports define.
    """
    yield from _modules_in(tree)
    own = {*defined, *_definitions(tree), *(name for names in _OF_OTHERS.values() for name in names)}
    yield from ((name, line) for name, line in _attributes_in(tree) if name not in own)


def _used():
    """Yield each private name that the source uses, and where."""
    trees = {}
    for file in sorted((_SOURCE / "tensorflowonspark").rglob("*.py")):
        module = ".".join(file.relative_to(_SOURCE).with_suffix("").parts).removesuffix(".__init__")
        trees[module] = ast.parse(file.read_text())
    defined = {module: set(_definitions(tree)) for module, tree in trees.items()}
    for module, tree in trees.items():
        folder = module.split(".")[1:2]
        if module == _DECLARING:
            continue
        if folder and folder[0] in _WITHOUT_BOTH:
            names = _modules_in(tree)
        else:
            names = used_in(tree, set().union(*(defined.get(each, ()) for each in _imports(tree))))
        for name, line in names:
            yield name, f"{module.removeprefix('tensorflowonspark.')}:{line}"


@lru_cache(maxsize=1)  # no more: every later collection of garbage would go through the nodes of all
def _nodes(tree):
    return list(ast.walk(tree))  # which takes a second for all of the source, and is wanted a dozen times


def _modules_in(tree):
    """Yield each name of a private module in a syntax tree, and its line; the module where no name is taken from it."""
    aliases = {}
    for node in _nodes(tree):
        if isinstance(node, ast.ImportFrom) and _is_of_private_package(node.module or ""):
            aliases |= {each.asname or each.name: (f"{node.module}.{each.name}", node.lineno) for each in node.names}
        elif isinstance(node, ast.Import):
            yield from ((each.name, node.lineno) for each in node.names if _is_of_private_package(each.name))
    taken = set()
    for node in _nodes(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            name, _ = aliases[node.value.id]
            if not name.rpartition(".")[2][0].isupper():  # no class
                taken.add(node.value.id)
                yield f"{name}.{node.attr}", node.lineno
    yield from (aliases[alias] for alias in aliases if alias not in taken)
    yield from ((text, line) for text, line in _strings_in(tree) if _is_of_private_package(text))


def _attributes_in(tree):
    """Yield each attribute in a syntax tree, or in its strings, that begins with one underscore, and its line."""
    for node in _nodes(tree):
        if isinstance(node, ast.Attribute) and _has_underscore(node.attr):
            yield node.attr, node.lineno
    for text, line in _strings_in(tree):
        parts = text.split(".")
        if all(map(_NAME.fullmatch, parts)) and not _is_of_private_package(text):
            yield from ((part, line) for part in parts if _has_underscore(part))


def _strings_in(tree):
    """Yield each string in a syntax tree that is no docstring, and its line; an f-string as it is written."""
    parts = {id(part) for node in _nodes(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    alone = {id(node.value) for node in _nodes(tree) if isinstance(node, ast.Expr)}
    for node in _nodes(tree):
        if isinstance(node, ast.JoinedStr):
            yield ast.unparse(node)[2:-1], node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | alone:
            yield node.value, node.lineno


def _definitions(tree):
    """Yield the names of functions, classes, variables and own attributes that a syntax tree defines."""
    for node in _nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            yield node.attr


def _is_own(owner):
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls")


def _imports(tree):
    """Yield the modules that a syntax tree imports, and what may be one."""
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _is_private(name):
    return _is_of_private_package(name) or any(
        _has_underscore(part) or part == "__internal__" for part in name.split(".")
    )


def _is_of_private_package(name):
    return any(f"{name}.".startswith(f"{package}.") for package in _PRIVATE_PACKAGES) and " " not in name


def _has_underscore(name):
    return name.startswith("_") and not name.startswith(("__", *_OUR_PREFIXES)) and len(name) > 1


if __name__ == "__main__":
    names, places = declared(), undeclared()
    used = [f"{name}  {', '.join(of)}" for name, of in places.items()]
    of_tf_keras = sum(name.startswith("tf_keras.") for name in names)
    print(f"{len(names)} declared:", *names, sep="\n  ")
    print(f"{len(used)} used and not declared:", *used, sep="\n  ")
    print(f"{len(names) - of_tf_keras + len(used)} private names of TensorFlow and Keras, {of_tf_keras} of tf_keras")
