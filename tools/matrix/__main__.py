"""Command line of the matrix: select cells, run them, write the page."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tools.matrix.cell_tests import end_tests
from tools.matrix.cells import CORNERS, JAVAS, NEXT, PYTHONS, ROOT, SPARKS, TENSORFLOWS, Cell, corner, selected, whole
from tools.matrix.environments import (
    NoJava,
    NoPython,
    NoRelease,
    find_java,
    find_python,
    install,
    resolve,
    versions_of,
)
from tools.matrix.page import publish, table
from tools.matrix.results import FAILED, PASSED, Result, Results, revision
from tools.matrix.running import EXTRA
from tools.matrix.tomorrow import cell_of, requirements, run_cell, run_columns

_DIRECTORY = ROOT / ".venvs" / "matrix"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make matrix",
        description="Run the same short set of tests with each combination of Python, Spark and TensorFlow. Without "
        "options all cells run, and docs/compatibility.md is written. Results of this revision are kept.",
    )
    for name, known in (("python", PYTHONS), ("spark", SPARKS), ("tensorflow", TENSORFLOWS)):
        parser.add_argument(f"--{name}", action="append", default=[], choices=known, help="repeat it for several")
    parser.add_argument(
        "--java", action="append", default=[], choices=JAVAS, help="in place of this machine's; repeat it for several"
    )
    parser.add_argument(
        "--corners", nargs="*", choices=CORNERS, help="these corners of the matrix; all of them if none"
    )
    parser.add_argument(
        "--next",
        nargs="*",
        choices=NEXT,
        help="the columns for tomorrow, or these of them: pre-releases of TensorFlow and Keras with the newest JAX, by "
        "the short set of tests, a quarter of the table of Keras, and Keras's own suite; the exit code is 0",
    )
    parser.add_argument("--short", action="store_true", help="with --next: only the short set of tests, and no page")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time (default: 1)")
    parser.add_argument("--again", action="store_true", help="also run cells that have passed in this revision")
    parser.add_argument("--list", action="store_true", help="only list the cells; exit code 1 if one can't run")
    parser.add_argument("--publish", action="store_true", help="only write the page, from the results that there are")
    parser.add_argument(
        "--install", type=Path, metavar="DIRECTORY", help="only make the environment of one cell, there"
    )
    parser.add_argument("--extra", default=EXTRA, help=f"with --install: the extra of this package ({EXTRA})")
    parser.add_argument(
        "--with", action="append", default=[], metavar="REQUIREMENT", dest="more", help="with --install"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if a cell has failed, or if none could run."""
    parser = _parser()
    options = parser.parse_args(arguments)
    cells = _cells(options, parser)
    if options.install:
        if len(cells) != 1:
            parser.error(f"--install makes one environment, and {len(cells)} cells are selected")
        return _install(cells[0], options)
    if options.next is not None:
        return run_columns([cell.tensorflow for cell in cells], revision(), _DIRECTORY, short=options.short)
    if options.list:
        return max([_list(cell) for cell in cells])
    results = Results(_DIRECTORY / "results.json")
    if options.publish:
        publish(results.by_cell)
        return 0
    current = revision()
    known = {
        name
        for name, result in results.by_cell.items()
        if current and result.revision == current and result.status != FAILED
    }
    todo = [cell for cell in cells if options.again or cell.name not in known]
    if len(todo) < len(cells):
        done = f"{len(cells) - len(todo)} of {len(cells)} cells"
        print(f"{done} need no other run in this revision (--again runs them too)")
    _run_all(todo, options.jobs, partial(_run_and_keep, results=results, current=current))
    of_page = [results.by_cell.get(cell.name) for cell in whole()]
    if len(cells) == len(of_page) and all(result and result.revision == current for result in of_page):
        publish(results.by_cell)
    else:
        print(table(cells, results.by_cell))
    statuses = [results.by_cell[cell.name].status for cell in cells]
    return int(FAILED in statuses or PASSED not in statuses)


def _cells(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Cell]:
    """Return the cells that the options select."""
    named = options.python or options.spark or options.tensorflow or options.java
    if named and (options.next is not None or options.corners is not None):
        parser.error("--next and --corners name cells; so do --python, --spark, --tensorflow and --java")
    if options.next is not None:
        return [cell_of(name) for name in options.next or NEXT]
    if options.corners is not None:
        return [corner(name, _has_python, _has_java) for name in options.corners or CORNERS]
    return list(selected(options.python, options.spark, options.tensorflow, options.java) if named else whole())


def _run_all(cells: Sequence[Cell], jobs: int, run: Callable[[Cell], None]) -> None:
    """Call a function with each cell; an interrupt ends the tests that run."""
    with ThreadPoolExecutor(jobs) as executor:
        try:
            list(executor.map(run, cells))
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            end_tests()
            raise


def _has_python(version: str) -> bool:
    try:
        find_python(version)
    except NoPython:
        return False
    return True


def _has_java(version: str) -> bool:
    try:
        find_java(version)
    except NoJava:
        return False
    return True


def _list(cell: Cell) -> int:
    try:
        found = versions_of(resolve(cell, EXTRA, *requirements(cell)))
    except (NoPython, NoRelease) as error:
        print(f"{cell.name}: {error}")
        return 1
    print(f"{cell.name}: pyspark {found['pyspark']}, tensorflow {found['tensorflow']} with {find_python(cell.python)}")
    return 0


def _install(cell: Cell, options: argparse.Namespace) -> int:
    try:
        more, overrides = requirements(cell)
        resolved = resolve(cell, options.extra, [*more, *options.more], overrides)
        python = install(cell, resolved, options.install.absolute())
    except (NoPython, NoRelease, RuntimeError) as error:
        print(f"{cell.name}: {error}", file=sys.stderr)
        return 1
    print(f"{cell.name}: {python}")
    return 0


def _run_and_keep(cell: Cell, results: Results, current: str) -> None:
    print(f"{cell.name}: begins\n", end="", flush=True)  # whole lines, since several cells run
    result = _run(cell, current)
    results.add(cell.name, result)
    print(f"{cell.name}: {result}\n", end="", flush=True)


def _run(cell: Cell, current: str) -> Result:
    return run_cell(cell, current, _DIRECTORY)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # the tests of a cell end with this process
    sys.exit(main())
