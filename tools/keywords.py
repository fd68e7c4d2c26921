"""Generate ``src/tensorflowonspark/keywords.pyi``, the keywords that are declared once, for type checkers and editors.

``python tools/keywords.py`` rewrites the file; the tests compare it with `stub`. It reads sources, and imports nothing.
"""

import ast
import builtins
import re
from pathlib import Path

__all__ = ["STUB", "stub"]

PACKAGE = Path(__file__).parent.parent / "src" / "tensorflowonspark"
STUB = PACKAGE / "keywords.pyi"
_HEAD = '"""Keywords that several functions take, as typed dicts, which `make keywords` writes."""\n'
# Typed dict (and its base): the module and the name of the declaration.
_DECLARED = {
    "ClusterKeywords(TypedDict, total=False)": ("settings", "ClusterSettings"),
    "RunKeywords(ClusterKeywords, total=False)": ("driver.run", "run"),
    "FeedKeywords(TypedDict, total=False)": ("driver.feed.feed_settings", "FeedSettings"),
    "FeatureKeywords(TypedDict, total=False)": ("node.feed.selection", "FeatureOptions"),
    "ComposedKeywords(FeatureKeywords, total=False)": ("node.feed.selection", "ComposedOptions"),
    "DatasetKeywords(ComposedKeywords, total=False)": ("node.feed.selection", "DatasetOptions"),
    "ReadKeywords(TypedDict, total=False)": ("tfrecords.options", "ReadOptions"),
    "ReduceKeywords(TypedDict, total=False)": ("frames.block_plans", "ReduceOptions"),
    "MapKeywords(ReduceKeywords, total=False)": ("frames.block_plans", "MapOptions"),
    "ModelKeywords(TypedDict, total=False)": ("ml.params", "ModelSettings"),
    "TrainingKeywords(ModelKeywords, total=False)": ("ml.training_params", "TrainingSettings"),
    "EstimatorKeywords(TrainingKeywords, total=False)": ("ml.training_params", "EstimatorSettings"),
}
# Class with the params, setters and getters of a stage.
_STAGES = {
    "ModelAccessors": ("ml.params", "ModelSettings"),
    "TrainingAccessors": ("ml.training_params", "TrainingSettings"),
    "EstimatorAccessors(TrainingAccessors)": ("ml.training_params", "EstimatorSettings"),
}


def stub() -> str:
    """Return the text of the stub."""
    imports: set[str | None] = {
        "from typing import TypedDict",
        "from typing_extensions import Self",
        "from pyspark.ml.param import Param",
    }
    classes = []
    for head, (module, name) in {**_DECLARED, **_STAGES}.items():
        source = _Source(module)
        members: list[str] = []
        for field, kind in source.fields(name).items():
            imports |= {source.origin(each) for each in _names(_plain(kind))}
            members += _accessors(field, kind) if head in _STAGES else [f"{field}: {ast.unparse(_plain(kind))}"]
        doc = f'"""Those of `tensorflowonspark.{module}.{name}`."""'
        classes.append("\n    ".join([f"class {head}:", doc, *members]))
    return "\n".join([_HEAD, *sorted(filter(None, imports)), "", "\n\n".join(classes), ""])


def _accessors(name: str, kind: ast.expr) -> list[str]:
    """Return a param, its setter and its getter, which returns what the setter's value was converted to."""
    title, given = name[0].upper() + name[1:], ast.unparse(_plain(kind))
    more = ast.unparse(kind) if isinstance(kind, ast.Subscript) else ""
    found = given.removesuffix(" | None")
    for loose, exact in (("Mapping[", "dict["), ("Sequence[", "list[")):
        if ("as_mapping" in more or "toList" in more) and found.startswith(loose):
            found = found.replace(loose, exact, 1)
    optional = given.endswith(" | None") and not re.search(r"\{\}|\[\]", more)
    return [
        f"{name}: Param[{found}]",
        f"def set{title}(self, value: {given}) -> Self: ...",
        f"def get{title}(self) -> {found}{' | None' * optional}: ...",
    ]


class _Source:
    """The source of a module."""

    def __init__(self, module: str) -> None:
        self._module = f"tensorflowonspark.{module}"
        self._tree = ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())

    def fields(self, path: str) -> dict[str, ast.expr]:
        """Return the types of a declaration's keywords by name."""
        found: ast.AST = self._tree
        for name in path.split("."):
            found = next(each for each in found.body if getattr(each, "name", None) == name)
        if isinstance(found, ast.ClassDef):
            return {each.target.id: each.annotation for each in found.body if isinstance(each, ast.AnnAssign)}
        return {each.arg: each.annotation for each in found.args.kwonlyargs}

    def origin(self, name: str) -> str | None:
        """Return the import of a name of this module; none for a builtin."""
        for each in ast.walk(self._tree):
            for alias in each.names if isinstance(each, (ast.Import, ast.ImportFrom)) else ():
                if name == (alias.asname or alias.name):
                    module = f"from {each.module} " if isinstance(each, ast.ImportFrom) else ""
                    return f"{module}import {ast.unparse(alias)}"
        return None if hasattr(builtins, name) else f"from {self._module} import {name}"


def _plain(kind: ast.expr) -> ast.expr:
    if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
        return ast.parse(kind.value, mode="eval").body
    if isinstance(kind, ast.Subscript) and getattr(kind.value, "id", None) == "Annotated":
        return kind.slice.elts[0]
    return kind


def _names(kind: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(kind) if isinstance(each, ast.Name)}


if __name__ == "__main__":
    STUB.write_text(stub())
