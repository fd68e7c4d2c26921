"""Packages that are set aside, in a process of their own: a test would leave them to the others."""

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
import wrapt
import outer.part.inner as before
from tensorflowonspark.supervisor.forkserver.set_aside import set_aside

files = before.__spec__, sys.modules["outer"].__spec__
set_aside("base", "outer")
assert not any(name.partition(".")[0] in ("base", "outer") for name in sys.modules)
for name in ("outer", "outer.part.inner", "base"):
    wrapt.register_post_import_hook(lambda module: print(module.__name__, "base" in sys.modules), name)
print("registered")
{statement}
import outer.part.inner as after
assert after is before
assert (after.__spec__, sys.modules["outer"].__spec__) == files
import outer.another
assert outer.another.base is sys.modules["base"]
"""


@pytest.fixture
def packages(tmp_path):
    """Make a package that imports another one."""
    for name, text in {
        "base.py": "print('base is executed')",
        "outer/__init__.py": "import base",
        "outer/part/__init__.py": "",
        "outer/part/inner.py": "",
        "outer/another.py": "import base",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("statement", "hooks"),
    [
        ("import outer", ["base", "outer.part.inner", "outer"]),
        ("from outer.part import inner", ["base", "outer.part.inner", "outer"]),
        ("import base", ["base", "outer.part.inner", "outer"]),
        ("import json", ["base", "outer.part.inner", "outer"]),
    ],
)
def test_an_import_gives_them_back_and_is_seen(packages, statement, hooks):
    program = _PROGRAM.replace("{statement}", statement)
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=packages, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["base is executed", "registered", *(f"{name} True" for name in hooks)]
