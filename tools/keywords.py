"""Generate ``src/tensorflowonspark/keywords.pyi``, the keywords that are declared once, for type checkers and editors.

``python tools/keywords.py`` rewrites the file; the tests compare it with `stub`. It reads sources, and imports nothing.
"""

import ast
import builtins
from pathlib import Path

__all__ = ["STUB", "stub"]

PACKAGE = Path(__file__).parent.parent / "src" / "tensorflowonspark"
STUB = PACKAGE / "keywords.pyi"
_HEAD = '"""Keywords that several functions take, as typed dicts, which `make keywords` writes."""\n'
# Typed dict (and its base): the module and the name of the declaration.
_DECLARED = {
    "ClusterKeywords(TypedDict, total=False)": ("config", "ClusterSettings"),
    "RunKeywords(ClusterKeywords, total=False)": ("driver.run", "run"),
}


def stub() -> str:
    """Return the text of the stub."""
    imports, classes = {("typing", "TypedDict")}, []
    for head, (module, name) in _DECLARED.items():
        source = _Source(module)
        fields = source.fields(name)
        imports |= {source.origin(each) for kind in fields.values() for each in _names(kind)} - {None}
        doc = f'    """Those of `tensorflowonspark.{module}.{name}`."""'
        lines = [f"    {field}: {ast.unparse(kind)}" for field, kind in fields.items()]
        classes.append("\n".join([f"class {head}:", doc, "", *lines]))
    lines = [f"from {module} import {name}" if name else f"import {module}" for module, name in sorted(imports)]
    return "\n".join([_HEAD, *lines, "", "\n\n".join(classes), ""])


class _Source:
    """The source of a module."""

    def __init__(self, module: str) -> None:
        self._module = f"tensorflowonspark.{module}"
        self._tree = ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())

    def fields(self, path: str) -> dict[str, ast.expr]:
        """Return the types of a declaration's keywords by name, without what ``Annotated`` adds."""
        found: ast.AST = self._tree
        for name in path.split("."):
            found = next(each for each in found.body if getattr(each, "name", None) == name)
        if isinstance(found, ast.ClassDef):
            fields = {each.target.id: each.annotation for each in found.body if isinstance(each, ast.AnnAssign)}
        else:
            fields = {each.arg: each.annotation for each in found.args.kwonlyargs}
        return {name: _plain(kind) for name, kind in fields.items()}

    def origin(self, name: str) -> tuple[str, str] | None:
        """Return the module from which a name of this one comes, and its name there; none for a builtin."""
        for each in ast.walk(self._tree):
            if isinstance(each, ast.ImportFrom) and name in [alias.name for alias in each.names]:
                return each.module, name
            if isinstance(each, ast.Import) and name in [alias.name for alias in each.names]:
                return name, ""
        return None if hasattr(builtins, name) else (self._module, name)


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
