"""One worker's part of the suite: the tests in their order, each agreed on with the other worker.

Both workers run the same tests, and exchange how each ended through files in a directory that both see: not through
TensorFlow, whose exchange may be what failed.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from functools import wraps
from itertools import count
from pathlib import Path

import pytest

from tests.support.keras_suite.loading import load

__all__ = ["run_tests"]

SEED = 1337
_mkdtemp = tempfile.mkdtemp
_LOOK_SECONDS = 0.002
_ERROR_LINES = 12
_TRACEBACK_CHARACTERS = 4000
_MEETING_SECONDS = 20
_PATIENCE_SECONDS = 30  # beyond a test's own time-out, after which the driver has ended the other worker


def run_tests(plan: dict, worker: int) -> int:
    """Run the tests of a plan in this worker; return how many it ran before it had to leave off.

    Parameters
    ----------
    plan : dict
        ``source`` (the directory ``keras/src`` of the source distribution), ``files`` (relative to it), ``done`` (the
        tests that are not to run), ``directory`` (of the exchange), ``strategy`` (whether each test runs in a
        strategy's scope), ``timeout`` (seconds a test may take) and ``select`` (what a test's name contains, or "").
    worker : int
        This worker's number, 0 or 1.
    """
    import tensorflow as tf

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if plan["strategy"] else None
    plugin = Worker(plan, worker, strategy)
    _prepare_tests(strategy)
    if strategy:
        _share_files(plugin)
    source = Path(plan["source"])
    options = [
        "--rootdir",
        str(source),
        "--confcutdir",
        str(source),
        "-c",
        os.devnull,
        "--continue-on-collection-errors",
    ]
    without = [f"-pno:{name}" for name in ("cacheprovider", "terminal", "faulthandler", "unraisableexception")]
    code = pytest.main([*options, *without, *(str(source / each) for each in plan["files"])], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED, OUT_OF_STEP):
        raise RuntimeError(f"pytest ended with {code!r}: {plugin.internal_error}")
    return plugin.finished


OUT_OF_STEP = 77


def _prepare_tests(strategy):
    """Have each test's ``setUp`` set the seed and enter the strategy's scope."""
    import keras
    from keras.src.testing import TestCase

    original = TestCase.setUp

    def leave(scope):
        with suppress(IndexError):  # a test that clears the session has left all scopes
            scope.__exit__(None, None, None)

    def set_up(test):
        original(test)  # clears the session, and so leaves all scopes
        keras.utils.set_random_seed(SEED)
        if strategy:
            scope = strategy.scope()
            scope.__enter__()
            test.addCleanup(leave, scope)

    TestCase.setUp = set_up


def _share_files(worker):
    """Let both workers find the files that only the chief writes, as in a directory that all hosts mount.

    Each worker has temporary directories of its own, since tests remove files. After each ``fit`` the second worker
    gets what the chief has written.
    """
    from keras import Model

    original = Model.fit

    @wraps(original)
    def fit(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        finally:
            worker.copy_files()

    Model.fit = fit
    tempfile.mkdtemp = worker.make_directory


class TestFile(pytest.Module):
    """A test file of Keras, imported under its name there."""

    __test__ = False

    def _getobj(self):
        parts = self.path.relative_to(self.config.rootpath).with_suffix("").parts
        return load(self.path, ".".join(("keras", "src", *parts)))


class Worker:
    """The plugin of pytest that runs each test in the strategy's scope and waits for the other worker at its end."""

    def __init__(self, plan, worker, strategy):
        self.plan = plan
        self.worker = worker
        self.strategy = strategy
        self.directory = Path(plan["directory"])
        self.finished = 0
        self.fits = 0
        self.internal_error = ""
        self.report = {}
        self._context = _context()

    def pytest_configure(self, config):
        for name in ("requires_trainable_backend", "multi_device"):  # Keras's own
            config.addinivalue_line("markers", name)

    def pytest_internalerror(self, excrepr):
        self.internal_error = str(excrepr)

    def pytest_pycollect_makemodule(self, module_path, parent):
        return TestFile.from_parent(parent, path=module_path)

    def pytest_collectreport(self, report):
        if report.failed:
            name = report.nodeid or "collection"
            self._put(f"collect-{name.replace('/', '.')}", {"test": name, **_failure(str(report.longrepr))})

    def pytest_collection_modifyitems(self, items):
        done = set(self.plan["done"])
        items[:] = [item for item in items if item.nodeid not in done and self.plan["select"] in item.nodeid]
        self._put("collected", [item.nodeid for item in items])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._put("running", {"number": self.finished, "test": item.nodeid, "since": time.time(), "pid": os.getpid()})
        self.report = {"test": item.nodeid, "outcome": "passed"}
        self.begin_files()
        began = time.perf_counter()
        result = yield
        self.report["seconds"] = round(time.perf_counter() - began, 3)
        self.report["exchanges"] = self._exchanges()
        self.report["reset"] = _context() is not self._context
        self._put(str(self.finished), self.report)
        other = self._other_report(self.finished)
        self.finished += 1
        if reason := _out_of_step(self.report, other):
            pytest.exit(reason, OUT_OF_STEP)
        return result

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.report.update(_failure(report.longreprtext))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.report.update(outcome="skipped", error=reason)

    def begin_files(self):
        """Have the next test's temporary files in a directory of its own."""
        self._copied, self._numbers = set(), count()
        tempfile.tempdir = str(self._files(self.worker))
        os.makedirs(tempfile.tempdir)

    def make_directory(self, suffix=None, prefix=None, dir=None):  # noqa: A002 - as tempfile.mkdtemp has it
        """Make a temporary directory, with the same name on both workers if it is the test that asks for it."""
        caller = sys._getframe(1)
        while caller.f_code.co_filename == tempfile.__file__:
            caller = caller.f_back
        if not caller.f_code.co_filename.endswith(("_test.py", "test_case.py")):  # as what only the chief writes
            return _mkdtemp(suffix, prefix, dir)
        path = Path(dir or tempfile.gettempdir()) / f"{prefix or 'tmp'}{next(self._numbers)}{suffix or ''}"
        path.mkdir(0o700)
        return str(path)

    def copy_files(self):
        """Wait until the chief's files of this test are complete, and copy them if this is the other worker."""
        self.fits += 1
        if self._meet(f"{self.finished}-fit-{self.fits}") and self.worker:
            chief, own = self._files(0), self._files(1)
            there = {path.relative_to(chief) for path in chief.rglob("*") if path.is_file()}
            for path in self._copied - there:
                (own / path).unlink(missing_ok=True)
                with suppress(OSError):  # it is not empty, or its parent is the test's own
                    (own / path).parent.rmdir()
            shutil.copytree(chief, own, dirs_exist_ok=True)
            self._copied = there
        self._meet(f"{self.finished}-copied-{self.fits}")

    def _files(self, worker):
        return self.directory / f"files-{worker}" / str(self.finished)

    def _meet(self, name):
        """Wait a few seconds for the other worker; return whether it came."""
        self._put(name, "")
        path = self.directory / f"{name}.{1 - self.worker}"
        until = time.monotonic() + _MEETING_SECONDS
        while not path.exists() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        return path.exists()

    def _exchanges(self):
        """Return how many exchanges this worker has begun: equal on workers that are in step."""
        if self.strategy is None:
            return 0
        table = self.strategy.extended._collective_keys._instance_key_table
        return sum(number for group in table.values() for number in group.values())

    def _put(self, name, content):
        path = self.directory / f"{name}.{self.worker}"
        partial = path.with_name(f"{path.name}.part")
        partial.write_text(json.dumps(content))
        partial.replace(path)

    def _other_report(self, number):
        path = self.directory / f"{number}.{1 - self.worker}"
        until = time.monotonic() + self.plan["timeout"] + _PATIENCE_SECONDS
        while not path.exists():
            if time.monotonic() > until:
                raise TimeoutError(f"worker {1 - self.worker} did not end {self.report['test']}")
            time.sleep(_LOOK_SECONDS)
        return json.loads(path.read_text())


def _context():
    from tensorflow.python.eager import context

    return context.context()


def _failure(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    errors = [line[2:].strip() for line in lines if line.startswith("E ")]
    error = "\n".join(errors[:_ERROR_LINES] or lines[-1:])
    return {"outcome": "failed", "error": error, "traceback": text[-_TRACEBACK_CHARACTERS:]}


def _out_of_step(mine, theirs):
    """Return why two workers can't go on with the next test after this one, or "" if they can."""
    if mine["exchanges"] != theirs["exchanges"]:
        return f"{mine['exchanges']} and {theirs['exchanges']} exchanges"
    if mine["reset"] or theirs["reset"]:
        return "the test has reset TensorFlow's context, to which the strategy belongs"
    broken = ("CollectiveReduce", "CollectiveGather", "UnavailableError", "Collective ops is aborted")
    text = mine.get("traceback", "") + theirs.get("traceback", "")
    return "the exchange failed" if any(each in text for each in broken) else ""
