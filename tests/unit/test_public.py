"""Public names, what importing them imports, and the examples in docstrings."""

import doctest
import pkgutil

import pytest

import tensorflowonspark
from tests.support.commands import run_python
from tests.support.examples import WITH_CONTEXT, WITH_NODES, WITH_SPARK, run_examples

_ELSEWHERE = WITH_SPARK | WITH_NODES | WITH_CONTEXT
_MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(tensorflowonspark.__path__, "tensorflowonspark.")
    if not module.name.endswith("__main__") and module.name not in _ELSEWHERE
)


def test_public_names_are_all_there():
    for name in tensorflowonspark.__all__:
        assert getattr(tensorflowonspark, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = tensorflowonspark.nothing


def test_neither_driver_nor_task_imports_tensorflow():
    program = (
        "import sys, tensorflowonspark.driver.cluster, tensorflowonspark.task.launch\n"
        "import tensorflowonspark.supervisor.supervisor\n"
        "print([name for name in ('tensorflow', 'keras', 'pyspark', 'pandas') if name in sys.modules])"
    )
    assert run_python(program).strip() == "[]"


@pytest.mark.parametrize("name", _MODULES)
def test_examples_of(name, tmp_path):
    run_examples(name, tmp_path, doctest.NORMALIZE_WHITESPACE)
