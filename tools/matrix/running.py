"""The run of a cell: its environment, its tests, and what has become of them."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path

from tools.matrix.cell_tests import run_tests, tests_of
from tools.matrix.cells import Cell
from tools.matrix.environments import NoJava, NoPython, NoRelease, find_java, install, resolve, versions_of
from tools.matrix.results import FAILED, NO_JAVA, NO_PYTHON, NO_RELEASE, PASSED, Result

__all__ = ["EXTRA", "run"]

EXTRA = "test-matrix"  # of this package, with what the tests need


def run(
    cell: Cell,
    current: str,
    directory: Path,
    more: Sequence[str] = (),
    overrides: Sequence[str] = (),
    further: Mapping[str, Callable[[Path, Path], str]] | None = None,
) -> Result:
    """Make the environment of a cell, run its tests, and remove the environment.

    Parameters
    ----------
    cell : Cell
        The versions.
    current : str
        The revision of the code.
    directory : pathlib.Path
        For the environment and for the output of the tests.
    more, overrides : sequence of str
        Requirements beside those of the cell, and in place of those of all packages.
    further : mapping, optional
        What runs after the tests, by its name: functions that take the interpreter and the file for the output, and
        return the outcome as text.
    """
    made = partial(Result, date=date.today().isoformat(), revision=current)
    environment, log = directory / cell.name, directory / f"{cell.name}.log"
    versions: dict[str, str] = {}
    variables: dict[str, str] = {}
    try:
        if cell.java:
            home, java = find_java(cell.java)
            variables["JAVA_HOME"] = str(home)
        resolved = resolve(cell, EXTRA, more, overrides)
        versions = versions_of(resolved)
        python = install(cell, resolved, environment)
        versions["python"] = _version(environment)
        if cell.java:
            versions["java"] = java
        log.write_text(f"{resolved}\n")
        started = time.monotonic()
        outcome = run_tests(python, tests_of(cell), log, variables)
        seconds = round(time.monotonic() - started)
        outcomes = {name: function(python, log) for name, function in (further or {}).items()}
    except NoJava as error:
        return made(NO_JAVA, str(error))
    except NoPython as error:
        return made(NO_PYTHON, str(error))
    except NoRelease as error:
        return made(NO_RELEASE, str(error))
    except RuntimeError as error:
        return made(FAILED, str(error), versions=versions)
    finally:
        shutil.rmtree(environment, ignore_errors=True)
    if outcome.failed:
        first, error = next(iter(outcome.failed.items()))
        detail = f"{first}: {error}" + (f" (and {len(outcome.failed) - 1} more)" if len(outcome.failed) > 1 else "")
        return made(FAILED, detail, outcome.passed, seconds, versions, outcomes)
    return made(PASSED, "", outcome.passed, seconds, versions, outcomes)


def _version(environment: Path) -> str:
    """Return the version of the Python of an environment."""
    settings = dict(
        line.split(" = ") for line in (environment / "pyvenv.cfg").read_text().splitlines() if " = " in line
    )
    return settings["version_info"]
