"""The tables of ``docs/compatibility.md``: two grids of results, and the versions of each cell."""

from collections.abc import Iterator, Mapping, Sequence

from tools.matrix.cells import JAVA_PYTHON, JAVAS, NEWEST, PYTHONS, ROOT, SPARKS, TENSORFLOWS, Cell, selected, whole
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
    grids = [_grid(results), f"Python {JAVA_PYTHON} with the newest TensorFlow:", _java_grid(results)]
    write_between(BEGIN, END, "\n\n".join([command, *grids, *_notes(results), _versions(results)]))


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
            lines.append([python, _spark(spark, of_row), *_texts(of_row, results)])
    return rows(lines)


def _java_grid(results: Mapping[str, Result]) -> str:
    """Return a row for each Spark, and a column for each Java beside this machine's."""
    found = {java: [results.get(Cell(JAVA_PYTHON, spark, NEWEST, java).name) for spark in SPARKS] for java in JAVAS}
    exact = {
        java: next((each.versions["java"] for each in of_java if each and "java" in each.versions), "not there")
        for java, of_java in found.items()
    }
    lines = [["Spark", *(f"Java {java} ({exact[java]})" for java in JAVAS)], ["---"] * (len(JAVAS) + 1)]
    for place, spark in enumerate(SPARKS):
        of_row = [found[java][place] for java in JAVAS]
        texts = zip(JAVAS.values(), _texts(of_row, results), strict=True)
        lines.append(
            [_spark(spark, of_row), *(text if spark in sparks else "does not start" for sparks, text in texts)]
        )
    return rows(lines)


def _texts(of_row: Sequence[Result | None], results: Mapping[str, Result]) -> Iterator[str]:
    """Yield what a grid has for results: how many tests have passed, or the status with the number of its line."""
    numbers = {detail: number for number, detail in enumerate(_details(results), 1)}
    for result in of_row:
        if result is None:
            yield "not run"
        elif result.status == PASSED:
            yield f"{result.tests} passed"
        else:
            found = f"{result.status} [{numbers[result.detail]}]"
            yield f"**{found}**" if result.status == FAILED else found


def _spark(version: str, results: Sequence[Result | None]) -> str:
    """Return the version of Spark, with the number of the newest one."""
    found = [result.versions["pyspark"] for result in results if result and "pyspark" in result.versions]
    return f"newest ({found[-1]})" if version == NEWEST and found else version


def _details(results: Mapping[str, Result]) -> Iterator[str]:
    details = [results[cell.name].detail for cell in whole() if cell.name in results]
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
            found = (versions.get(name, versions.get(f"{name}-nightly", "")) for name in _PACKAGES)
            lines.append([versions.get("python", cell.python), *found])
    return rows(lines)


def rows(lines: Sequence[Sequence[str]]) -> str:
    """Return the lines of a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else f"|{'|'.join(line)}|" for line in lines)
