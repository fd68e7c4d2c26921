"""The application of a ``tfos run`` on YARN or Kubernetes: its state, and its end where no driver can end it."""

import re
import subprocess
import sys
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from tensorflowonspark import storage
from tensorflowonspark.cli.signals import uninterrupted
from tensorflowonspark.cli.spark_settings import program_of_spark, spark_settings
from tensorflowonspark.errors import StorageError

_CLI = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"  # which `yarn application` runs; Spark's jars have it
_SECONDS = 60.0  # for one command; a client retries for 15 minutes while it reaches no resource manager
_STATES = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
_ROW = re.compile(rf"^\s*(application_\d+_\d+)\s.*\s({_STATES.replace(',', '|')})\s+UNDEFINED\s", re.MULTILINE)
_PHASE = re.compile(r"\bphase: (\w+)")
_TAGS, _STAGING = "spark.yarn.tags", "spark.yarn.stagingDir"


class Application:
    """An application whose driver runs in a pod; under a master without cluster mode nothing is left of one.

    `settings` are arguments to add to those of spark-submit.
    """

    def __init__(self, submit: Sequence[str]) -> None:
        self.settings: list[str] = []
        self._submit = submit

    def has_driver(self, lines: Iterable[str]) -> bool:
        """Return whether its driver has started: earlier there is nobody to ask for an end.

        The lines are the last ones of spark-submit, which reports the state of a pod every second.

        Examples
        --------
        >>> Application([]).has_driver(["Application status for spark-1 (phase: Running)", "phase: Pending"])
        False
        """
        return _PHASE.findall("".join(lines))[-1:] != ["Pending"]  # a pod that waits for a host or its image

    def kill(self, name: str = "") -> None:
        """Kill it, if it has not ended, with all its executors; remove what spark-submit has uploaded for it.

        The name is what spark-submit has called it, as ``training:digits-driver`` (a namespace and a pod), or
        ``application_1_0001``, which it may have uploaded files for without submitting it; empty if unknown.
        """
        if not name:
            return
        _, problem = _run("spark-submit", *self._submit, "--kill", name)
        namespace, _, pod = name.partition(":")
        result = f"kubectl delete pod -n {namespace} {pod}: {problem}" if problem else f"{name}: deleted"
        print(result, file=sys.stderr)


def application_of(submit: Sequence[str]) -> Application:
    """Return the application that spark-submit makes of its arguments."""
    return (YarnApplication if spark_settings(submit).get("spark.master") == "yarn" else Application)(submit)


class YarnApplication(Application):
    """An application on YARN, which is found by its tag, also when its id is not known."""

    def __init__(self, submit: Sequence[str]) -> None:
        super().__init__(submit)
        given = spark_settings(submit)
        self._tag = f"tfos-{uuid.uuid4().hex}"
        self.settings = ["--conf", f"{_TAGS}={','.join(filter(None, [given.get(_TAGS), self._tag]))}"]
        self._staging = given.get(_STAGING, "")

    def has_driver(self, lines: Iterable[str]) -> bool:  # noqa: ARG002 - as for a pod
        """Return whether its driver has started, or YARN does not answer."""
        found = self._find()
        return found is None or "RUNNING" in found.values()

    def kill(self, name: str = "") -> None:
        """Kill it; no signal interrupts this."""
        with uninterrupted():
            self._kill(name)

    def _kill(self, uploaded: str) -> None:
        found = self._find()
        if found is None and not uploaded:
            print("it runs if YARN has accepted it: yarn application -list", file=sys.stderr)
            return
        running = [uploaded] if found is None else list(found)
        if running:
            if self._yarn("-kill", *running) is None:
                print(f"it may still run: yarn application -kill {' '.join(running)}", file=sys.stderr)
                return
            print(f"killed {', '.join(running)}", file=sys.stderr)
        elif not uploaded:
            print("what Spark has uploaded for it may remain in .sparkStaging", file=sys.stderr)
        for each in {*running, uploaded} - {""}:
            path = f"{self._staging.rstrip('/')}/" if self._staging else ""
            try:
                storage.remove(storage.absolute_path(f"{path}.sparkStaging/{each}", str(Path.cwd())))
            except StorageError as error:
                print(error, file=sys.stderr)

    def _find(self) -> dict[str, str] | None:
        """Return the states of the applications with the tag that have not ended, by their ids."""
        rows = self._yarn("-list", "-appTags", self._tag, "-appStates", _STATES)
        return None if rows is None else dict(_ROW.findall(rows))

    def _yarn(self, *arguments: str) -> str | None:
        """Run ``yarn application`` by Spark's own jars; return its output, None if it fails."""
        output, problem = _run("spark-class", _CLI, "application", *arguments)
        if problem:
            print(f"yarn application {' '.join(arguments)}: {problem}", file=sys.stderr)
        return None if problem else output


def _run(program: str, *arguments: str) -> tuple[str, str]:
    """Run one of Spark's programs; return its output, and the last line of its errors if it fails."""
    try:
        done = subprocess.run(
            [program_of_spark(program), *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            start_new_session=True,  # a signal for this command's process group is not for it
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_SECONDS:.0f} s"
    if not done.returncode:
        return done.stdout, ""
    last = f"{done.stdout}{done.stderr}".strip().rpartition("\n")[2]
    return done.stdout, last or f"exit code {done.returncode}"
