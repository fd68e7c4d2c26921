"""The columns for tomorrow: pre-releases of TensorFlow and Keras with the newest JAX, tested before they are released.

What they show fails nothing: lines report what has changed since the page was written.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.matrix.cell_tests import run_keras_suite, run_keras_table
from tools.matrix.cells import NEXT, NEXT_PYTHON, Cell
from tools.matrix.environments import NoPython, newest
from tools.matrix.page import PAGE, rows, write_between
from tools.matrix.results import NO_PYTHON, NO_RELEASE, PASSED, Result
from tools.matrix.running import run

__all__ = ["cell_of", "changes", "publish", "requirements", "run_cell", "run_columns"]

_BEGIN, _END = "<!-- next: begin -->", "<!-- next: end -->"
_DATE, _NOT_MEASURED = "measured on", "not measured"
_SHORT_SET, _TABLE, _SUITE = "the short set", "a quarter of [Keras](keras.md), with JAX", "Keras's own suite"
_PACKAGES = {
    "Python": ("python",),
    "Spark": ("pyspark",),
    "TensorFlow": ("tensorflow", "tf-nightly"),
    "Keras": ("keras-nightly",),
    "tf_keras": ("tf-keras-nightly",),
    "JAX": ("jax",),
}


def run_columns(names: Sequence[str], current: str, directory: Path, *, short: bool) -> int:
    """Run columns and report their results; write those on the page whose tests have all run.

    Parameters
    ----------
    names : sequence of str
        Of `NEXT`.
    current : str
        The revision of the code.
    directory : pathlib.Path
        For environments and for the output of the tests.
    short : bool
        Whether only the short set runs.

    Returns
    -------
    int
        The exit code, which is always 0.
    """
    results = {}
    for name in names:
        print(f"{name}: begins", flush=True)
        further = {} if short else {_TABLE: run_keras_table, _SUITE: run_keras_suite}
        results[name] = run_cell(cell_of(name), current, directory, further)
        print(f"{name}: {results[name]}")
        for line in changes(PAGE.read_text(), name, results[name]):
            print(line, flush=True)
    measured = {name: each for name, each in results.items() if each.versions}
    if measured and not short:
        publish(measured)
    return 0


def run_cell(
    cell: Cell, current: str, directory: Path, further: Mapping[str, Callable[[Path, Path], str]] | None = None
) -> Result:
    """Run a cell, with what it has of pre-releases; the parameters are those of `run`."""
    try:
        more, overrides = requirements(cell)
    except NoPython as error:
        return Result(NO_PYTHON, str(error))
    except RuntimeError as error:
        return Result(NO_RELEASE, str(error))
    return run(cell, current, directory, more, overrides, further)


def cell_of(name: str) -> Cell:
    """Return the cell of a column of `NEXT`."""
    return Cell(NEXT_PYTHON, "newest", name)


def requirements(cell: Cell, version: str = "") -> tuple[list[str], list[str]]:
    """Return what a cell has of pre-releases, and what replaces the requirements that its packages have.

    The bounds of this package's extras are for released versions. Of each library there is one distribution, although
    the pre-releases of TensorFlow and tf_keras require several.

    Parameters
    ----------
    cell : Cell
        The versions. One with releases needs nothing.
    version : str, optional
        Of TensorFlow; by default the newest on the index.

    Raises
    ------
    NoPython
        If there is no interpreter of that version.
    RuntimeError
        If there is no version of TensorFlow.

    Examples
    --------
    >>> wanted, overrides = requirements(Cell("3.12", "newest", "candidate"), "2.22.0rc0")
    >>> wanted
    ['tensorflow==2.22.0rc0', 'keras-nightly', 'tf-keras-nightly>=2.22.0.dev0,<2.23.0.dev0', 'jax', 'pip']
    >>> overrides[:2]
    ['tensorflow==2.22.0rc0', "tf-nightly; python_version < '3'"]
    """
    if not cell.column:
        return [], []
    distribution = NEXT[cell.column]
    version = version or newest(distribution, cell.python)
    tensorflow = f"{distribution}=={version}"
    major, minor = map(int, version.split(".")[:2])
    tf_keras = f"tf-keras-nightly>={major}.{minor}.0.dev0,<{major}.{minor + 1}.0.dev0"
    others = [*(each for each in NEXT.values() if each != distribution), "keras", "tf-keras", "tb-nightly"]
    absent = [f"{each}; python_version < '3'" for each in others]
    # pip fetches Keras's tests.
    return [tensorflow, "keras-nightly", tf_keras, "jax", "pip"], [tensorflow, *absent]


def publish(results: Mapping[str, Result]) -> None:
    """Write columns between their marks on the page; others stay as they are there."""
    there = PAGE.read_text()
    facts = {
        name: {**_facts(results[name]), _DATE: results[name].date} if name in results else _column(there, name)
        for name in NEXT
    }
    names = list(dict.fromkeys(fact for of in facts.values() for fact in of))
    lines = [["", *facts], ["---"] * (len(facts) + 1)]
    lines += [[fact, *(of.get(fact, _NOT_MEASURED) for of in facts.values())] for fact in names]
    write_between(_BEGIN, _END, "\n\n".join(['By `make matrix ARGS="--next"`:', rows(lines)]))


def changes(page: str, name: str, result: Result) -> Iterator[str]:
    """Yield a line for each fact of a column that the page has otherwise; one line if there is none."""
    found = _facts(result)
    if not found:
        return
    there = _column(page, name)
    if not there:
        yield f"{name}: {PAGE.name} has no results of it"
        return
    changed = [fact for fact in found if found[fact] != there.get(fact, "")]
    for fact in changed:
        yield f"{name}: changed: {fact} is {found[fact]}, and {there.get(fact) or 'not there'} in {PAGE.name}"
    if not changed:
        yield f"{name}: as in {PAGE.name}"


def _facts(result: Result) -> dict[str, str]:
    """Return the versions and outcomes of a column, as the page has them; none if nothing has run."""
    if not result.versions:
        return {}
    of_packages = {
        shown: next((result.versions[name] for name in names if name in result.versions), "none")
        for shown, names in _PACKAGES.items()
    }
    passed = f"{result.tests} passed"
    short = passed if result.status == PASSED else f"**failed**, {passed}: {result.detail.replace('|', '/')}"
    return {**of_packages, _SHORT_SET: short, **{name: text.replace("|", "/") for name, text in result.more.items()}}


def _column(page: str, name: str) -> dict[str, str]:
    """Return the facts of a column on the page."""
    part = page.partition(_BEGIN)[2].partition(_END)[0]
    cells = [re.split(r" \| ?", line.strip("| ")) for line in part.splitlines() if line.startswith("| ")]
    if not cells or name not in cells[0]:
        return {}
    place = cells[0].index(name) + len(cells[1]) - len(cells[0])  # the first cell of the head is empty
    return {line[0]: line[place] for line in cells[1:] if len(line) > place and line[place] != _NOT_MEASURED}
