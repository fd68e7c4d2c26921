"""The suite on a cluster: as many clusters as it takes, one after another, until each test has an outcome."""

import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
from pyspark import cloudpickle as spark_cloudpickle

import tensorflowonspark as tfos
from tests.support.paths import ROOT

__all__ = ["Outcome", "run_suite"]

_LOOK_SECONDS = 0.5
_FAILED_SECONDS = 15


@dataclass(frozen=True)
class Outcome:
    """How one test ended on both workers.

    Parameters
    ----------
    test : str
        Its file and name, as pytest writes it.
    kind : str
        "passed", "failed", "skipped", "differs" (it ended differently on the two workers), "out of step" (it ended on
        one worker, and the other waits for it), "hangs" (on both) or "ends the cluster" (which failed meanwhile).
    error : str
        What it raised, on one worker or on each.
    seconds : float
        On the worker that took longer.
    restarted : bool
        Whether the cluster was begun anew after it.
    """

    test: str
    kind: str
    error: str = ""
    seconds: float = 0.0
    restarted: bool = False
    traceback: str = ""


def run_suite(
    spark, source: Path, files: list[str], *, strategy: bool, timeout: float, select: str = "", done: Iterable[str] = ()
) -> Iterator[Outcome]:
    """Run test files in the nodes of clusters of two workers; yield each test's `Outcome`.

    A test after which the two workers are out of step, or that does not end in time, is the last of its cluster.

    Parameters
    ----------
    spark : SparkSession
        With two task slots.
    source : Path
        The directory ``keras/src`` of the source distribution.
    files : list of str
        Relative to `source`.
    strategy : bool
        Whether each test runs in the scope of a ``MultiWorkerMirroredStrategy``.
    timeout : float
        Seconds for one test.
    select : str
        Only tests whose name contains this.
    done : iterable of str
        Tests that do not run again.
    """
    for pickler in (cloudpickle, spark_cloudpickle):
        pickler.register_pickle_by_value(sys.modules[__name__])  # the nodes find this folder by the plan alone
    done = list(done)
    while True:
        directory = Path(tempfile.mkdtemp(prefix="keras-suite-"))
        plan = {
            "root": str(ROOT),
            "source": str(source),
            "files": files,
            "done": done,
            "directory": str(directory),
            "strategy": strategy,
            "timeout": timeout,
            "select": select,
        }
        try:
            watch = _Watch(directory, timeout)
            error = ""
            try:
                tfos.run(
                    spark,
                    _program,
                    plan,
                    num_workers=2,
                    logs=tfos.Logs(log_level="ERROR"),
                    nodes=tfos.Nodes(heartbeat_timeout=60),
                )
            except tfos.ClusterError as failure:
                error = str(failure)
            finally:
                watch.stop()
            outcomes, collected = _outcomes(directory, watch.hung, error)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        if not outcomes and error:
            raise RuntimeError(f"no test ran: {error}")
        new = [each for each in outcomes if each.test not in done]
        yield from new
        done = [*done, *(each.test for each in new)]
        if set(collected) <= set(done):
            return


def _program(plan, ctx):
    sys.path.insert(0, plan["root"])
    from tests.support.keras_suite.node import run_tests

    return run_tests(plan, ctx.index)


class _Watch:
    """Ends the nodes of a cluster with a test that takes too long."""

    def __init__(self, directory, timeout):
        self.hung = ""
        self._directory, self._timeout = directory, timeout
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self):
        self._stopped.set()
        self._thread.join()

    def _look(self):
        while not self._stopped.wait(_LOOK_SECONDS):
            running = _read_all(self._directory, "running")
            late = [each for each in running if each and time.time() - each["since"] > self._allowed(each)]
            if late:
                self.hung = late[0]["test"]
                os.kill(late[0]["pid"], signal.SIGKILL)
                return

    def _allowed(self, running):
        """Return the seconds that a test may take: few beyond the end of the other worker, if it failed there."""
        reports = [each for each in _read_all(self._directory, str(running["number"])) if each]
        if len(reports) == 1 and reports[0]["outcome"] == "failed":
            return reports[0]["seconds"] + _FAILED_SECONDS
        return self._timeout if len(reports) < 2 else math.inf


def _outcomes(directory, hung, error):
    """Return what both workers wrote: the outcomes of one cluster, and all the tests that it was to run."""
    collected = next((each for each in _read_all(directory, "collected") if each is not None), [])
    outcomes = []
    for path in sorted(directory.glob("collect-*.0")):
        report = json.loads(path.read_text())
        outcomes.append(Outcome(report["test"], "failed", report["error"], traceback=report["traceback"]))
    for number, test in enumerate(collected):
        reports = [each for each in _read_all(directory, str(number)) if each is not None]
        if len(reports) == 2:
            outcomes.append(_merged(test, reports))
            continue
        if error:
            kind = "ends the cluster" if hung != test else "out of step" if reports else "hangs"
            errors = " | ".join([*(each.get("error", each["outcome"]) for each in reports), error])
            traceback = "\n".join(each.get("traceback", "") for each in reports)
            outcomes.append(Outcome(test, kind, errors, restarted=True, traceback=traceback))
        break
    return outcomes, collected


def _merged(test, reports):
    kinds = {each["outcome"] for each in reports}
    seconds = max(each["seconds"] for each in reports)
    restarted = reports[0]["exchanges"] != reports[1]["exchanges"]
    errors = list(dict.fromkeys(each.get("error", "") for each in reports))
    traceback = "\n".join(each.get("traceback", "") for each in reports)
    if len(kinds) == 1:
        return Outcome(test, kinds.pop(), " | ".join(errors), seconds, restarted, traceback)
    each_error = (f"worker {place} {each['outcome']}: {each.get('error', '')}" for place, each in enumerate(reports))
    return Outcome(test, "differs", " | ".join(each_error), seconds, restarted, traceback)


def _read_all(directory, name):
    found = []
    for worker in (0, 1):
        path = directory / f"{name}.{worker}"
        found.append(json.loads(path.read_text()) if path.exists() else None)
    return found
