"""The generated map of modules."""

import importlib.util
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "tools" / "module_map.py"
_SPEC = importlib.util.spec_from_file_location("module_map", _PATH)
module_map = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(module_map)


def test_the_page_matches_the_docstrings():
    assert module_map.PAGE.read_text() == module_map.page(), "run `make module-map`"


def test_modules_are_grouped_by_folder(tmp_path):
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text('"""The package."""\n')
    (package / "inner" / "__init__.py").write_text('"""A folder\nof modules. And more.\n\nDetails.\n"""\n')
    (package / "inner" / "one.py").write_text('"""Reads ``a | b``, as 2.x did. More of it."""\n')
    assert module_map.page(package).endswith(
        "## `package/`\n\nThe package.\n\n"
        "## `package/inner/`\n\nA folder of modules. And more.\n\n"
        "| module | responsibility |\n|---|---|\n| `one` | Reads `a \\| b`, as 2.x did. |\n"
    )


def test_a_module_without_a_docstring_is_an_error(tmp_path):
    (tmp_path / "__init__.py").write_text('"""The package."""\n')
    (tmp_path / "bare.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"bare\.py has no docstring"):
        module_map.page(tmp_path)
