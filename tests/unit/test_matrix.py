"""The matrix of versions: its cells, the resolver's reasons, outcomes of tests, and the page."""

import doctest
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.support.paths import ROOT
from tests.support.programs import wait_for
from tools.matrix import __main__ as matrix
from tools.matrix import cell_tests, cells, environments, page, running, tomorrow
from tools.matrix.cells import CORNERS, PYTHONS, Cell, corner, selected, whole
from tools.matrix.results import FAILED, NO_JAVA, NO_RELEASE, PASSED, Result, Results

_NO_SOLUTION = """error: No solution found when resolving dependencies
  cause: Because tensorflow>=2.16.0rc0,<=2.16.2 has no wheels with a matching Python ABI tag
         we can conclude that your requirements are unsatisfiable.

hint: You require CPython 3.13 (`cp313`), but we only found wheels for
      `tensorflow` (v2.16.2) with the following Python ABI tags: `cp39`
"""
_REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_b" name="test_one"><properties>
<property name="cells" value="2 cells: 2 same"/></properties></testcase>
<testcase classname="tests.a.test_b" name="test_two"><failure message="Timeout (&gt;120.0s)&#10;x"/>
</testcase>
<testcase classname="tests.a.test_b" name="test_three"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize("module", [cells, environments, tomorrow])
def test_its_examples(module):
    assert not doctest.testmod(module).failed


def test_the_pythons_are_those_of_the_package():
    assert PYTHONS == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert len(list(selected())) == 60
    assert len({cell.name for cell in whole()}) == 64


def test_corners_take_the_nearest_python_that_there_is():
    assert [corner(name, lambda _: True, lambda _: True).name for name in CORNERS] == [
        "3.10-3.5-2.16",
        "3.12-4.0-2.19-java21",
        "3.13-newest-newest-java25",
    ]
    assert [corner(name, lambda python: python == "3.11", lambda java: java == "25").name for name in CORNERS] == [
        "3.11-3.5-2.16",
        "3.11-4.0-2.19",
        "3.11-newest-newest-java25",
    ]


def test_a_java_is_found_where_linux_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "_JAVAS", tmp_path)
    for folder, version in (("a", "21.0.9"), ("b", "25")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "release").write_text(f'IMPLEMENTOR="A"\nJAVA_VERSION="{version}"\n')
    assert environments.find_java("21") == (tmp_path / "a", "21.0.9")
    assert environments.find_java("25") == (tmp_path / "b", "25")
    cell = Cell("3.12", "newest", "newest", "2")
    assert running.run(cell, "", tmp_path).status == NO_JAVA


def test_a_python_without_a_release_of_tensorflow_has_its_candidate(monkeypatch):
    monkeypatch.setattr(tomorrow, "newest", lambda name, python: {"tensorflow": "2.22.0rc0"}[name])
    ahead = Cell("3.14", "4.0", "newest")
    assert ahead.requirements == ["pyspark==4.0.*"]
    assert tomorrow.requirements(ahead)[0][0] == "tensorflow==2.22.0rc0"
    assert cell_tests._ON_JAX[0] in cell_tests.tests_of(ahead)
    for cell in (Cell("3.14", "4.0", "2.19"), Cell("3.13", "4.0", "newest")):
        assert tomorrow.requirements(cell) == ([], [])
        assert cell_tests._ON_JAX[0] not in cell_tests.tests_of(cell)


def test_the_tests_of_a_cell_exist():
    for spark, tensorflow in (("3.5", "newest"), ("newest", "newest"), ("newest", "nightly")):
        for test in [*cell_tests.tests_of(Cell("3.12", spark, tensorflow)), cell_tests._KERAS_TABLE]:
            file, _, function = test.partition("::")
            assert f"def {function.partition('[')[0] or 'test_'}" in (ROOT / file).read_text(), test


def test_the_reason_is_the_resolvers():
    assert environments.reason(_NO_SOLUTION) == (
        "You require CPython 3.13 (`cp313`), but we only found wheels for `tensorflow` (v2.16.2) with the following "
        "Python ABI tags: `cp39`"
    )
    assert environments.reason(_NO_SOLUTION.partition("hint")[0]).startswith("Because tensorflow>=2.16.0rc0")


def test_an_outcome_counts_what_passed_and_names_what_failed():
    outcome = cell_tests.outcome_of(_REPORT)
    assert outcome.passed == 1
    assert outcome.failed == {"tests/a/test_b.py::test_two": "Timeout (>120.0s)"}
    assert outcome.timed_out
    assert outcome.properties == {"cells": "2 cells: 2 same"}


@pytest.fixture
def python(tmp_path):
    """Return a function that makes an interpreter: a script that stands for pytest, and has its options."""

    def make(script):
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\nimport sys\n{script}")
        path.chmod(0o755)
        return path

    return make


def test_what_has_timed_out_runs_once_more_alone(python, tmp_path):
    again = python(f"""
report = next(each for each in sys.argv if each.startswith("--junitxml=")).partition("=")[2]
open({str(tmp_path / "calls")!r}, "a").write(" ".join(sys.argv[-2:]) + chr(10))
twice = sys.argv[-1] == "tests/a/test_b.py::test_two"
open(report, "w").write("<testsuite><testcase classname='tests.a.test_b' name='test_two'/></testsuite>"
                        if twice else {_REPORT!r})
sys.exit(0 if twice else 1)
""")
    outcome = cell_tests.run_tests(again, ["tests/a", "tests/b"], tmp_path / "log")
    assert (outcome.passed, outcome.failed) == (2, {})
    first, second = (tmp_path / "calls").read_text().splitlines()
    assert first == "tests/a tests/b"
    assert second.endswith("tests tests/a/test_b.py::test_two")


def test_a_pytest_that_runs_nothing_is_a_failure(python, tmp_path):
    outcome = cell_tests.run_tests(python("print('not found: tests/a'); sys.exit(4)"), ["tests/a"], tmp_path / "log")
    assert (outcome.passed, outcome.failed) == (0, {"pytest": "it ended with exit code 4: not found: tests/a"})


def test_an_interrupt_ends_the_tests_and_begins_no_others(python, tmp_path, monkeypatch):
    monkeypatch.setattr(cell_tests, "_ended", Event())
    sleeping = python("import time; time.sleep(60)")
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(cell_tests.run_tests, sleeping, ["tests/a"], tmp_path / "log")
        wait_for(lambda: cell_tests._running)
        cell_tests.end_tests()
        later = executor.submit(cell_tests.run_tests, sleeping, ["tests/a"], tmp_path / "log")
        for each in (running, later):
            with pytest.raises(KeyboardInterrupt):
                each.result(20)


def test_a_result_is_kept_until_the_code_changes(tmp_path, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(matrix, "_DIRECTORY", tmp_path)
    monkeypatch.setattr(matrix, "_run", lambda cell, current: ran.append(current) or Result(PASSED, revision=current))
    for revision in ("one", "one", "two", "", ""):  # the last two are not committed
        monkeypatch.setattr(matrix, "revision", lambda revision=revision: revision)
        assert matrix.main(["--python", "3.12", "--spark", "3.5", "--tensorflow", "2.18"]) == 0
    assert ran == ["one", "two", "", ""]
    assert Results(tmp_path / "results.json").by_cell["3.12-3.5-2.18"].revision == ""
    assert "1 of 1 cells need no other run in this revision" in capsys.readouterr().out


def test_a_failed_cell_is_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "_DIRECTORY", tmp_path)
    monkeypatch.setattr(matrix, "_run", lambda cell, current: Result(FAILED, "test_a: no"))
    assert matrix.main(["--python", "3.12", "--spark", "3.5", "--tensorflow", "2.18"]) == 1


def test_publish_runs_no_cell(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(matrix, "_DIRECTORY", tmp_path)
    monkeypatch.setattr(matrix, "publish", written.append)
    Results(tmp_path / "results.json").add("3.12-3.5-2.18", Result(PASSED))
    assert matrix.main(["--publish"]) == 0
    assert written == [{"3.12-3.5-2.18": Result(PASSED)}]


def test_the_page_has_a_grid_with_reasons_and_the_versions(tmp_path, monkeypatch):
    results = {
        cell.name: Result(PASSED, tests=31, versions={"pyspark": "4.3.0"}, date="2026-11-24") for cell in selected()
    }
    results["3.13-3.5-2.16"] = Result(NO_RELEASE, "no wheels", date="2026-11-25")
    results["3.10-3.5-2.16"] = Result(FAILED, "test_a: no", date="2026-11-24")
    results["3.12-newest-newest-java25"] = Result(PASSED, tests=31, versions={"java": "25.0.3"}, date="2026-11-24")
    results["3.12-3.5-newest-java21"] = Result(FAILED, "test_b: no", date="2026-11-24")
    del results["3.11-4.0-2.18"]
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "ROOT", tmp_path)
    page.PAGE.write_text(f"before\n\n{page.BEGIN}\nold\n{page.END}\n\nafter\n")
    page.publish(results)
    text = page.PAGE.read_text()
    assert text.startswith("before\n\n")
    assert text.endswith("\n\nafter\n")
    assert "old" not in text
    assert "Measured on 2026-11-24 to 2026-11-25" in text
    assert "| 3.10 | 3.5 | **failed [1]** | 31 passed | 31 passed | 31 passed |" in text
    assert "| 3.11 | 4.0 | 31 passed | not run | 31 passed | 31 passed |" in text
    assert "| 3.13 | 3.5 | no release [2] | 31 passed | 31 passed | 31 passed |" in text
    assert "| Spark | Java 21 (not there) | Java 25 (25.0.3) |" in text
    assert "| 3.5 | **failed [3]** | does not start |" in text
    assert "| newest | not run | 31 passed |" in text
    assert "| 3.13 | newest (4.3.0) |" in text
    assert "1. test_a: no\n2. the resolver: no wheels\n3. test_b: no" in text


VERSIONS = {
    "python": "3.12.1",
    "pyspark": "4.3.0",
    "tensorflow": "2.22.0rc0",
    "keras-nightly": "3.16.0.dev1",
    "jax": "0.12",
}
TOMORROW = Result(PASSED, tests=33, versions=VERSIONS, date="2026-11-26")


@pytest.fixture
def columns(tmp_path, monkeypatch):
    """Return a function that runs columns with this result, and gives the page; the index has no nightly build."""
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(tomorrow, "PAGE", page.PAGE)
    monkeypatch.setattr(page, "ROOT", tmp_path)
    page.PAGE.write_text(f"before\n\n{tomorrow._BEGIN}\n\nNot measured yet.\n\n{tomorrow._END}\n\nafter\n")

    def newest(name, _python):
        if name == "tf-nightly":
            raise RuntimeError("no version of tf-nightly: there is no index")
        return "2.22.0rc0"

    monkeypatch.setattr(tomorrow, "newest", newest)

    def run(result, *options):
        monkeypatch.setattr(tomorrow, "run", lambda *_: result)
        assert matrix.main(["--next", *options]) == 0
        return page.PAGE.read_text()

    return run


def test_columns_for_tomorrow_fail_nothing_and_tell_what_has_changed(columns, capsys, monkeypatch):
    assert "Not measured yet" in columns(TOMORROW, "--short")
    output = capsys.readouterr().out
    assert "candidate: passed: 33 tests" in output
    assert "candidate: page.md has no results of it" in output
    assert "nightly: no release: no version of tf-nightly: there is no index\n" in output

    monkeypatch.setattr(tomorrow, "newest", lambda _name, _python: "2.22.0rc0")
    whole = Result(**{**vars(TOMORROW), "more": {tomorrow._SUITE: "none: 800 passed | 1 failed"}})
    text = columns(whole, "candidate")
    assert "|  | candidate | nightly |\n|---|---|---|\n| Python | 3.12.1 | not measured |\n" in text
    columns(TOMORROW, "nightly", "--short")
    assert "nightly: page.md has no results of it" in capsys.readouterr().out
    later = Result(**{**vars(whole), "date": "2026-11-27"})
    text = columns(later, "nightly")
    assert "|  | candidate | nightly |\n|---|---|---|\n| Python | 3.12.1 | 3.12.1 |\n" in text
    assert "| measured on | 2026-11-26 | 2026-11-27 |" in text
    assert "| Keras's own suite | none: 800 passed / 1 failed | none: 800 passed / 1 failed |" in text
    assert text.endswith("\n\nafter\n")
    capsys.readouterr()

    assert columns(TOMORROW, "candidate", "--short") == text
    assert "candidate: as in page.md\n" in capsys.readouterr().out
    columns(Result(FAILED, "test_a: no", 31, versions={**VERSIONS, "jax": "0.13"}), "nightly", "--short")
    assert capsys.readouterr().out.splitlines()[2:] == [
        "nightly: changed: JAX is 0.13, and 0.12 in page.md",
        "nightly: changed: the short set is **failed**, 31 passed: test_a: no, and 33 passed in page.md",
    ]


def test_the_environment_of_a_column_is_made_to_debug_in(monkeypatch, tmp_path, capsys):
    asked = {}

    def resolve(cell, extra, more, overrides):
        asked.update(cell=cell.name, more=more, overrides=overrides)
        return "keras-nightly==3.16.0.dev1"

    monkeypatch.setattr(matrix, "resolve", resolve)
    monkeypatch.setattr(matrix, "install", lambda _cell, resolved, directory: directory / resolved)
    monkeypatch.setattr(tomorrow, "newest", lambda _name, _python: "2.22.0rc0")
    to = ["--install", str(tmp_path)]
    assert matrix.main(["--next", "candidate", *to, "--with", "keras-nightly==3.16.0.dev1"]) == 0
    assert capsys.readouterr().out == f"3.12-newest-candidate: {tmp_path}/keras-nightly==3.16.0.dev1\n"
    assert asked["cell"] == "3.12-newest-candidate"
    assert (asked["more"][0], asked["more"][-1]) == ("tensorflow==2.22.0rc0", "keras-nightly==3.16.0.dev1")
    assert "keras; python_version < '3'" in asked["overrides"]

    for wrong, words in ((["--next", *to], "2 cells are selected"), (["--next", "--python", "3.12"], "name cells")):
        with pytest.raises(SystemExit):
            matrix.main(wrong)
        assert words in capsys.readouterr().err


def test_a_column_has_one_distribution_of_each_library():
    wanted, overrides = tomorrow.requirements(tomorrow.cell_of("nightly"), "2.23.0.dev20261026")
    assert wanted[:2] == ["tf-nightly==2.23.0.dev20261026", "keras-nightly"]
    absent = {each.partition(";")[0] for each in overrides if ";" in each}
    assert absent == {"tensorflow", "keras", "tf-keras", "tb-nightly"}


def test_keras_own_tests_are_counted(python, tmp_path):
    (tmp_path / "log").write_text("before\n")
    script = """
print("none: 5 tests with keras-nightly 3.16: 4 passed, 1 failed")
print("strategy: 5 tests with keras-nightly 3.16: 5 passed")
print("+ none a_test.py::T::t: failed: no")
"""
    assert cell_tests.run_keras_suite(python(script), tmp_path / "log") == (
        "without a strategy 4 passed, 1 failed; in one 5 passed; 1 other than with the newest Keras"
    )
    assert cell_tests.run_keras_suite(python("print('no network'); sys.exit(1)"), tmp_path / "log") == (
        "**failed**: it ended with exit code 1: no network"
    )
