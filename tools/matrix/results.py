"""Results of cells, and the file that keeps them until the code changes."""

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

from tools.matrix.cells import ROOT

__all__ = ["FAILED", "NO_JAVA", "NO_PYTHON", "NO_RELEASE", "PASSED", "Result", "Results", "revision"]

PASSED, FAILED, NO_RELEASE, NO_PYTHON, NO_JAVA = "passed", "failed", "no release", "no Python", "no Java"
_WHAT_COUNTS = ("src", "tests", "examples", "tools/matrix", "pyproject.toml")


@dataclass(frozen=True)
class Result:
    """What has become of a cell.

    Attributes
    ----------
    status : str
        ``"passed"``, ``"failed"``, ``"no release"``, ``"no Python"`` or ``"no Java"``.
    detail : str
        The first failure, or the reason why there is nothing to run.
    tests, seconds : int
        How many tests have passed, and the time of all tests.
    versions : dict of str to str
        The packages' versions, that of Python, and that of a Java which is not the machine's own.
    more : dict of str to str
        The outcomes of what ran after the tests, by its name.
    date, revision : str
        When it ran, as ``2026-11-24``, and with which revision of the code; empty for one that is not committed.
    """

    status: str
    detail: str = ""
    tests: int = 0
    seconds: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    date: str = ""
    revision: str = ""

    def __str__(self) -> str:
        if self.status == PASSED:
            return f"passed: {self.tests} tests in {self.seconds} s"
        return f"{self.status}: {self.detail}"


class Results:
    """The newest result of each cell, by its name, in a file of JSON."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = Lock()
        self.by_cell = self._read()

    def _read(self) -> dict[str, Result]:
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        return {name: Result(**of) for name, of in known.items()}

    def add(self, name: str, result: Result) -> None:
        """Keep the result of a cell in place of an older one."""
        with self._lock:
            self.by_cell = {**self._read(), name: result}  # another process may have added some
            self._file.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({name: asdict(of) for name, of in sorted(self.by_cell.items())}, indent=1)
            self._file.write_text(f"{text}\n")


def revision() -> str:
    """Return the revision of the code and its tests, whatever else has changed since; empty if it is not committed."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments, "--", *_WHAT_COUNTS]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    if not (ROOT / ".git").exists():  # a copy without its history
        return ""
    return "" if git("status", "--porcelain") else git("log", "-1", "--format=%H")
