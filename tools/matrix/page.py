"""The tables of ``docs/compatibility.md``: a grid of results, and the versions of each cell."""

from collections.abc import Iterator, Mapping, Sequence

from tools.matrix.cells import NEWEST, PYTHONS, ROOT, SPARKS, TENSORFLOWS, Cell, selected
from tools.matrix.results import FAILED, NO_RELEASE, PASSED, Result

__all__ = ["BEGIN", "END", "PAGE", "publish", "rows", "table", "write_between"]

PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
_PACKAGES = ["pyspark", "tensorflow", "keras", "tf-keras", "numpy", "pyarrow"]


def publish(results: Mapping[str, Result]) -> None:
    """Write the tables of the whole matrix between the markers of the page."""
    dates = sorted({result.date for result in results.values()})
    measured = dates[0] if len(set(dates)) == 1 else f"{dates[0]} to {dates[-1]}"
    command = f"Measured on {measured} with `make matrix`."
    write_between(BEGIN, END, "\n\n".join([command, _grid(results), *_notes(results), _versions(results)]))


def write_between(begin: str, end: str, text: str) -> None:
    """Write a text between two markers of the page."""
    head, _, rest = PAGE.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    PAGE.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}")
    print(f"written: {PAGE.relative_to(ROOT)}")


def table(cells: Sequence[Cell], results: Mapping[str, Result]) -> str:
    """Return the results of some cells, one per line."""
    width = max(len(cell.name) for cell in cells)
    return "\n".join(f"{cell.name:{width}}  {results.get(cell.name, 'not run')}" for cell in cells)


def _grid(results: Mapping[str, Result]) -> str:
    """Return a row for each Python and Spark, and a column for each TensorFlow."""
    numbers = {detail: number for number, detail in enumerate(_details(results), 1)}

    def text(result: Result | None) -> str:
        if result is None:
            return "not run"
        if result.status == PASSED:
            return f"{result.tests} passed"
        found = f"{result.status} [{numbers[result.detail]}]"
        return f"**{found}**" if result.status == FAILED else found

    lines = [
        [
            "Python",
            "Spark",
            *(f"TensorFlow {version}" if version != NEWEST else "newest TensorFlow" for version in TENSORFLOWS),
        ]
    ]
    lines.append(["---"] * len(lines[0]))
    for python in PYTHONS:
        for spark in SPARKS:
            of_row = [results.get(Cell(python, spark, tensorflow).name) for tensorflow in TENSORFLOWS]
            lines.append([python, _spark(spark, of_row), *map(text, of_row)])
    return rows(lines)


def _spark(version: str, results: Sequence[Result | None]) -> str:
    """Return the version of Spark, with the number of the newest one."""
    found = [result.versions["pyspark"] for result in results if result and "pyspark" in result.versions]
    return f"newest ({found[-1]})" if version == NEWEST and found else version


def _details(results: Mapping[str, Result]) -> Iterator[str]:
    details = [results[cell.name].detail for cell in selected() if cell.name in results]
    yield from dict.fromkeys(filter(None, details))


def _notes(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the list of failures and of the resolver's reasons."""
    reasons = {result.detail for result in results.values() if result.status == NO_RELEASE}
    lines = [
        f"{number}. {'the resolver: ' if detail in reasons else ''}{detail}"
        for number, detail in enumerate(_details(results), 1)
    ]
    if lines:
        yield "\n".join(lines)


def _versions(results: Mapping[str, Result]) -> str:
    lines = [["Python", *("tf_keras" if name == "tf-keras" else name for name in _PACKAGES)]]
    lines.append(["---"] * len(lines[0]))
    for cell in selected():
        versions = results[cell.name].versions if cell.name in results else {}
        if versions:
            lines.append([versions.get("python", cell.python), *(versions.get(name, "") for name in _PACKAGES)])
    return rows(lines)


def rows(lines: Sequence[Sequence[str]]) -> str:
    """Return the lines of a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else f"|{'|'.join(line)}|" for line in lines)
