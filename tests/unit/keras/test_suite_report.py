"""What `make keras-suite` reports: every failure without a reason, and every reason without a failure."""

import sys

import pytest

from tests.support.keras_suite.cluster import Outcome
from tests.support.keras_suite.loading import load
from tests.support.keras_suite.report import Expected, compare, page, read_expected

REFUSED = "jit_compile=True"
JIT = Expected("refused", "XLA", REFUSED, ("a_test.py::T::test_jit*",), ("strategy",))
ABSENT = Expected("package", "JAX", "No module named 'jax'")


def failed(name, error):
    return Outcome(f"a_test.py::T::{name}", "failed", error)


def test_a_failure_with_its_reason_is_no_difference():
    run = {"strategy": [failed("test_jit_1", "SpecError: jit_compile=True: no"), failed("x", "No module named 'jax'")]}
    found = compare(run, [JIT, ABSENT])
    assert found
    assert [each for _, _, each in found.explained] == [JIT, ABSENT]


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (failed("test_jit_1", "AssertionError"), "+ strategy a_test.py::T::test_jit_1: failed: AssertionError"),
        (failed("test_b", REFUSED), "+ strategy a_test.py::T::test_b: failed: jit_compile=True"),
        (
            Outcome("a_test.py::T::test_jit_1", "hangs", REFUSED),
            "+ strategy a_test.py::T::test_jit_1: hangs",
        ),
        (Outcome("a_test.py::T::test_jit_1", "passed"), "- strategy a_test.py::T::test_jit_1: expected to fail"),
        (
            Outcome("a_test.py::T::test_c", "passed"),
            "- strategy a_test.py::T::test_jit*: expected to fail, and",
        ),
    ],
    ids=["another error", "another test", "another kind of failure", "it passes", "it is gone"],
)
def test_a_difference_is_one_line(outcome, line):
    found = compare({"strategy": [outcome]}, [JIT, ABSENT])
    assert not found
    assert next(found.lines()).startswith(line)


def test_a_reason_of_one_mode_is_none_in_the_other():
    assert not compare({"none": [failed("test_jit_1", "jit_compile=True")]}, [JIT])
    assert compare({"none": [Outcome("a_test.py::T::test_jit_1", "passed")]}, [JIT])


def test_the_page_counts_files_and_reasons():
    run = {
        "none": [Outcome("a_test.py::T::test_jit_1", "passed"), Outcome("b_test.py::T::t", "skipped", "torch only")],
        "strategy": [failed("test_jit_1", "jit_compile=True"), Outcome("b_test.py::T::t", "hangs")],
    }
    text = page(run, compare(run, [JIT]), "today")
    assert "| `a_test.py` | 1 passed | 0 passed, 1 failed |" in text
    assert "| refused by name | XLA |  | 1 |" in text
    assert "- `b_test.py::T::t`, in `MultiWorkerMirroredStrategy`: hangs" in text


def test_a_kind_must_be_known(tmp_path):
    file = tmp_path / "expected.toml"
    file.write_text('[[expected]]\nkind = "odd"\nreason = "r"\nerror = "e"\n')
    with pytest.raises(ValueError, match="kind='odd'"):
        read_expected(file)


def test_a_package_that_is_not_installed_fails_only_the_tests_that_use_it(tmp_path):
    file = tmp_path / "some_test.py"
    file.write_text("import not_there.part as part\nclass Base(part.Thing): pass\ndef use(): part.array([1])\n")
    module = load(file, "some_test")
    assert module.Base
    assert not isinstance(3, module.part.Thing)
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there'"):
        module.use()
    assert "not_there" not in sys.modules
