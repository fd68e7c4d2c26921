"""Generate ``docs/architecture/modules.md``, the map of modules, from the docstrings of the package.

``python tools/module_map.py`` rewrites the page; the tests compare it with `page`.
"""

import ast
import re
from pathlib import Path

__all__ = ["PAGE", "page"]

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tensorflowonspark"
PAGE = ROOT / "docs" / "architecture" / "modules.md"
_HEAD = """# Modules

Every module of `src/tensorflowonspark` with the first sentence of its docstring, by folder. This page is generated:
change the docstrings and run `make module-map`. [Architecture](../architecture.md) describes layers and processes.
"""


def page(package: Path = PACKAGE) -> str:
    """Return the text of the page.

    Parameters
    ----------
    package : pathlib.Path
        The folder of the package.

    Returns
    -------
    str
        Markdown: a section with a table of modules for each folder that contains any.

    Raises
    ------
    ValueError
        If a module or a folder has no docstring.
    """
    folders: dict[Path, list[Path]] = {}
    for module in sorted(package.rglob("*.py")):
        folders.setdefault(module.parent, []).append(module)
    return "\n".join([_HEAD, *(_section(folder, folders[folder], package) for folder in sorted(folders))])


def _section(folder: Path, modules: list[Path], package: Path) -> str:
    name = f"{folder.relative_to(package.parent)}/"
    lines = [f"## `{name}`", "", _markdown(_paragraph(folder / "__init__.py")), ""]
    members = [module for module in modules if module.name != "__init__.py"]
    if members:
        lines += ["| module | responsibility |", "|---|---|"]
        lines += [f"| `{module.stem}` | {_markdown(_sentence(_paragraph(module)))} |" for module in members]
        lines.append("")
    return "\n".join(lines)


def _paragraph(module: Path) -> str:
    """Return the first paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse(module.read_text()))
    if not docstring:
        raise ValueError(f"{module} has no docstring: its first sentence states the module's responsibility")
    return " ".join(docstring.split("\n\n")[0].split())


def _sentence(text: str) -> str:
    """Return the first sentence of a paragraph; ``2.x`` and the like do not end it."""
    return re.split(r"(?<=[.?!])\s+(?=[A-Z`])", text)[0]


def _markdown(text: str) -> str:
    """Return a docstring's text as it appears in a table: reST literals become Markdown's, pipes are escaped."""
    return text.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
