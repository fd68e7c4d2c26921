"""Execute the notebooks of ``examples/notebooks``, and keep their output in them.

``python tools/notebooks.py`` rewrites the notebooks; the tests execute them and compare the kinds of output with
what is kept.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat

__all__ = ["NOTEBOOKS", "execute"]

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
_CELL_SECONDS = 240
_NODE_LINE = re.compile(r"\[(?:chief|worker|ps|evaluator):\d+\] ")
_PATHS = {str(ROOT), str(Path.home()), sys.prefix, sys.base_prefix, "/tmp/"}  # noqa: S108 - of this machine


def execute(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the output of a new kernel; what Spark and TensorFlow log is left out.

    Parameters
    ----------
    path : pathlib.Path
        The notebook.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails.
    ValueError
        If an output contains a path of this machine.
    """
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=_CELL_SECONDS, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":
            cell.outputs = list(_readable(cell.outputs))
    text = "\n".join(_texts(notebook))
    found = [each for each in _PATHS if len(each) > 1 and each in text]
    if found:
        raise ValueError(f"{path.name} shows paths of this machine: {', '.join(found)}")
    return notebook


def _texts(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Yield all that a reader sees, but for pictures."""
    for cell in notebook.cells:
        yield cell.source
        for output in cell.get("outputs", ()):
            yield output.get("text", "")
            yield from (text for kind, text in output.get("data", {}).items() if kind.startswith("text/"))


def _readable(outputs: list[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """Yield outputs with the lines of nodes in one piece, and without what logs and progress bars write."""
    written = "".join(output.text for output in outputs if output.get("name") == "stderr")
    lines = [line.rpartition("\r")[2] for line in written.split("\n")]  # a progress bar redraws its line
    if text := "".join(f"{line}\n" for line in lines if _NODE_LINE.match(line)):
        yield nbformat.v4.new_output("stream", name="stderr", text=text)
    yield from (output for output in outputs if output.get("name") != "stderr")


def main() -> None:
    """Rewrite the notebooks."""
    for path in NOTEBOOKS:
        nbformat.write(execute(path), path)


if __name__ == "__main__":
    main()
