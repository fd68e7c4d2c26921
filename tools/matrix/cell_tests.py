"""The tests of a cell: which they are, their run, and its outcome."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from xml.etree import ElementTree

from tools.matrix.cells import ROOT, Cell

__all__ = ["Outcome", "end_tests", "outcome_of", "run_keras_suite", "run_keras_table", "run_tests", "tests_of"]

_CLUSTER, _SPARK = "tests/cluster", "tests/spark"
_TESTS = [
    "tests/unit/keras/test_private_names.py::test_the_installed_versions_have_all_names",
    "tests/unit/tfrecords/test_framing.py",
    f"{_SPARK}/frames/test_frames.py::test_maps_add_columns[local-graph-map_blocks]",
    f"{_SPARK}/tfrecords/test_dataframes.py::test_all_types_both_ways",
    f"{_SPARK}/tfrecords/test_dataframes.py::test_tensorflow_reads_what_was_written",
    f"{_SPARK}/ml/test_model.py::test_logits_of_two_classes_and_of_more",
    f"{_CLUSTER}/lifecycle/test_lifecycle.py::test_nodes_know_each_other[local-detached]",
    f"{_CLUSTER}/lifecycle/test_lifecycle.py::test_the_block_raises_what_the_users_code_raised_and_ends_all_nodes",
    f"{_CLUSTER}/feed/test_feeds.py::test_rows_reach_the_programs[local]",
    f"{_CLUSTER}/feed/test_feeds.py::test_feeds_of_all_kinds_follow_each_other_on_one_cluster[local]",
    f"{_CLUSTER}/feed/test_feeds.py::test_every_type_of_spark_arrives",
    f"{_CLUSTER}/feed/test_inference.py::test_a_keras_model_answers",
    f"{_CLUSTER}/training/test_training.py::test_a_worker_whose_partition_is_empty[local-True]",
    f"{_CLUSTER}/training/test_training.py::test_export_is_whole_and_runs_without_us",
    f"{_CLUSTER}/training/test_training.py::test_asynchronous_training_with_a_parameter_server",
    f"{_CLUSTER}/ml/test_estimator.py::test_number_columns_become_one_input_and_class_weights_count",
    f"{_CLUSTER}/v2/test_pipeline.py::test_a_program_of_2x_trains_and_applies",
    f"{_CLUSTER}/cli/test_run.py::test_a_script_that_knows_nothing_of_spark_trains_on_two_workers[local]",
]
_ON_JAX = [f"{_CLUSTER}/keras/test_jax.py::test_two_workers_train_as_one_process_does"]
_KERAS_TABLE = f"{_CLUSTER}/keras/test_table.py::test_no_cell_is_wrong"
_OF_SPARK_4 = [f"{_SPARK}/tfrecords/test_source.py::test_both_ways"]  # data sources in Python
_HAVE_RUN = (0, 1)  # exit codes of pytest: all tests have passed, or some have failed
_ended = Event()
_running: "set[subprocess.Popen[bytes]]" = set()
_SECONDS = 3600  # for the tests of a cell, on a machine that does other work too
_MODES = {"none": "without a strategy", "strategy": "in one"}
_SUITE_SECONDS = 4 * 3600  # for Keras's own tests, which took 23 minutes on two cores without other load
_TEST_SECONDS = 600  # for a test that sets no limit of its own


@dataclass
class Outcome:
    """The outcome of some tests.

    Attributes
    ----------
    passed : int
        How many have passed.
    failed : dict of str to str
        The error of each failed test, in one line, by pytest's name of it; of pytest itself by another one.
    properties : dict of str to str
        What tests have recorded, by name.
    """

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def timed_out(self) -> bool:
        """Whether a test has failed by a time-out, as it may on a busy machine."""
        return any(
            re.search(r"time-?out|timed out|within|seconds", error, re.IGNORECASE) for error in self.failed.values()
        )


def tests_of(cell: Cell) -> list[str]:
    """Return the tests of a cell, as pytest names them."""
    on_jax = _ON_JAX if cell.column else []
    return [*_TESTS, *on_jax] if cell.spark.startswith("3.") else [*_TESTS, *_OF_SPARK_4, *on_jax]


def run_tests(python: Path, tests: list[str], log: Path, variables: Mapping[str, str] | None = None) -> Outcome:
    """Run tests on the master `local`, and once more those that failed by a time-out.

    Parameters
    ----------
    python : pathlib.Path
        The interpreter of the cell's environment.
    tests : list of str
        As pytest names them.
    log : pathlib.Path
        The file to which the output is appended.
    variables : mapping, optional
        Of their environment, such as another ``JAVA_HOME``.

    Raises
    ------
    KeyboardInterrupt
        If `end_tests` has been called.
    """
    outcome = _pytest(python, tests, log, variables)
    if outcome.timed_out and all("::" in name for name in outcome.failed):
        again = _pytest(python, list(outcome.failed), log, variables)
        outcome = Outcome(outcome.passed + again.passed, again.failed)
    return outcome


def run_keras_table(python: Path, log: Path) -> str:
    """Run a quarter of two columns of ``docs/keras.md``, on TensorFlow and on JAX; return what its cells have come to.

    Raises
    ------
    KeyboardInterrupt
        If `end_tests` has been called.
    """
    share = {"TFOS_TEST_TABLE": "MultiWorkerMirrored,JAX", "TFOS_TEST_TABLE_SHARE": "4"}
    outcome = _pytest(python, [_KERAS_TABLE], log, share)
    error = next(iter(outcome.failed.values()), "")
    return f"**failed**: {error}" if error else outcome.properties.get("cells", "no cell is wrong")


def run_keras_suite(python: Path, log: Path) -> str:
    """Run Keras's own tests in the nodes of clusters; return how many have passed and failed.

    Raises
    ------
    KeyboardInterrupt
        If `end_tests` has been called.
    """
    begun = log.stat().st_size
    try:
        code = _execute([python, "-m", "tests.support.keras_suite"], python, log, _SUITE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"**failed**: not finished after {_SUITE_SECONDS} s"
    lines = log.read_bytes()[begun:].decode(errors="replace").splitlines()
    found = (re.match(r"(none|strategy): \d+ tests with [^:]+: (.+)", line) for line in lines)
    counts = [f"{_MODES[each[1]]} {each[2]}" for each in found if each]
    unknown = sum(line.startswith(("+ ", "- ")) for line in lines)
    if not counts:
        return f"**failed**: it ended with exit code {code}: {(lines or [''])[-1]}"
    return "; ".join(
        [*counts, f"{unknown} other than with the newest Keras" if unknown else "as with the newest Keras"]
    )


def _pytest(python: Path, tests: list[str], log: Path, variables: Mapping[str, str] | None = None) -> Outcome:
    scratch = Path(tempfile.mkdtemp(prefix="tfos-matrix-"))
    report = scratch / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-o", f"timeout={_TEST_SECONDS}", f"--junitxml={report}"]
    command = [python, "-m", "pytest", *options, f"--basetemp={scratch / 'tests'}", *tests]
    try:
        code = _execute(command, python, log, _SECONDS, variables)
        if code not in _HAVE_RUN or not report.exists():
            last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
            return Outcome(failed={"pytest": f"it ended with exit code {code}: {last}"})
        return outcome_of(report.read_text())
    except subprocess.TimeoutExpired:
        return Outcome(failed={"pytest": f"not finished after {_SECONDS} s (time-out)"})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _execute(
    command: Sequence[str | Path], python: Path, log: Path, seconds: int, variables: Mapping[str, str] | None = None
) -> int:
    """Run a command of an environment, and end it and its group; return its exit code.

    Raises
    ------
    subprocess.TimeoutExpired
        If it runs longer.
    KeyboardInterrupt
        If `end_tests` has been called.
    """
    without = ("VIRTUAL_ENV", "TFOS_TEST_TURN")  # the second would leave out slow tests
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment |= {"TFOS_TEST_MASTERS": "local", "TFOS_TEST_JAVA_ARCHIVE": "0", **(variables or {})}
    environment |= {"PATH": f"{python.parent}{os.pathsep}{environment['PATH']}"}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        _running.add(process)
        try:
            if _ended.is_set():
                raise KeyboardInterrupt
            code = process.wait(seconds)
            if _ended.is_set():
                raise KeyboardInterrupt
            return code
        finally:
            _end(process)
            _running.discard(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End pytest, if it runs, and the processes of its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end_tests() -> None:
    """End all tests that run, and begin no others."""
    _ended.set()
    for process in list(_running):
        _end(process)


def outcome_of(report: str) -> Outcome:
    """Return the outcome that a report of pytest in JUnit's XML states."""
    outcome = Outcome()
    for case in ElementTree.fromstring(report).iter("testcase"):  # noqa: S314 - written by our own pytest
        outcome.properties |= {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        errors = [*case.findall("failure"), *case.findall("error")]
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if errors:
            outcome.failed[name] = (errors[0].get("message") or "").strip().partition("\n")[0]
        elif case.find("skipped") is None:
            outcome.passed += 1
    return outcome
