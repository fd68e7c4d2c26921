"""The public interface: typed explicit signatures, documented sections, and the README's programs under mypy."""

import inspect
import os
import re
import subprocess
import sys
import textwrap
from enum import Enum
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.ml.param import Params

import tensorflowonspark

README = Path(__file__).parents[2] / "README.md"
PACKAGES = tuple(f"tensorflowonspark{name}" for name in ("", ".frames", ".ml", ".ml.mlflow", ".storage"))
# Names that a program of the README takes from its surroundings, as in a notebook.
PRELUDE = """
from typing import Any

import tensorflowonspark as tfos
from pyspark.sql import DataFrame, SparkSession

spark: SparkSession
df: DataFrame
test: DataFrame
ctx: tfos.Context
model: Any
train: Any
args: Any
"""


# The methods of a Spark ML stage that Spark documents, and accessors of params, which the stage's class documents.
_SPARK_ML = re.compile(r"copy|read|write|(get|set)[A-Z]\w*")


def _public():
    """Yield the name of each public callable, the callable, and whether its sections are documented elsewhere."""
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            if name.startswith("__"):
                continue
            item = getattr(module, name)
            yield f"{package}.{name}", (item, False)
            if inspect.isclass(item) and not issubclass(item, BaseException):
                is_stage = issubclass(item, Params)
                for method, function in _methods(item):
                    elsewhere = is_stage and method != "setParams" and _SPARK_ML.fullmatch(method)
                    yield f"{package}.{name}.{method}", (function, bool(elsewhere))


def _methods(item):
    """Yield the public methods of a class that it or a base of it in this package defines."""
    own = [base for base in item.__mro__ if base.__module__.startswith("tensorflowonspark")]
    names = {name for base in own for name in vars(base) if not name.startswith("_")}
    for name in sorted(names):
        function = inspect.getattr_static(item, name)
        function = getattr(function, "__func__", function)
        if inspect.isfunction(function):
            yield name, function


CALLABLES = dict(_public())


def _faults(item, elsewhere):
    """Return what is missing in the signature and the docstring of a public callable."""
    doc = inspect.getdoc(item) or ""
    function = item.__init__ if inspect.isclass(item) else item
    if inspect.isclass(item) and (issubclass(item, Enum) or not inspect.isfunction(function)):
        return [] if doc else ["no docstring"]
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    faults = [] if doc else ["no docstring"]
    loose = [each for each in parameters if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    # The keys of an unpacked TypedDict are explicit, and the names of metrics are the user's.
    explicit = [each for each in loose if str(each.annotation).startswith("Unpack[") or each.name == "metrics"]
    faults += [f"{each} is not explicit" for each in loose if each not in explicit]
    faults += [f"{each.name} has no type" for each in parameters if each.annotation is each.empty]
    if not inspect.isclass(item) and signature.return_annotation is signature.empty:
        faults.append("the result has no type")
    if elsewhere:
        return faults
    sections = set(re.findall(r"^(\w+)\n-+$", doc, re.MULTILINE))
    if parameters and not sections & {"Parameters", "Attributes"}:
        faults.append("no Parameters")
    returns = "None" if inspect.isclass(item) else str(signature.return_annotation)
    if returns not in ("None", "Self", "<class 'NoneType'>") and not sections & {"Returns", "Yields"}:
        faults.append("no Returns")
    return faults


@pytest.mark.parametrize("name", sorted(CALLABLES))
def test_signature_and_docstring_are_complete(name):
    assert _faults(*CALLABLES[name]) == []


def test_every_public_name_is_defined():
    for package in PACKAGES:
        module = import_module(package)
        assert sorted(set(module.__all__)) == sorted(module.__all__)
        assert set(module.__all__) <= set(dir(module))


def _programs():
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_programs_of_the_readme_pass_mypy_strict(tmp_path):
    programs = _programs()
    assert len(programs) >= 2
    for number, program in enumerate(programs):
        # A block that a function contains shows a part of it; a user's own functions may have no types.
        text = f"{PRELUDE}\n\ndef program_{number}() -> None:\n{textwrap.indent(program, '    ')}"
        (tmp_path / f"program_{number}.py").write_text(text)
    source = str(Path(tensorflowonspark.__file__).parents[1])
    found = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-incremental"),
            *("--allow-untyped-defs", "--allow-untyped-calls", "--check-untyped-defs"),
            *("--config-file", str(README.with_name("pyproject.toml")), *sorted(map(str, tmp_path.glob("*.py")))),
        ],
        capture_output=True,
        check=False,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": source},
    )
    assert found.returncode == 0, found.stdout + found.stderr
