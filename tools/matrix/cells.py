"""Cells of the matrix: combinations of Python, Spark and TensorFlow, and which of them to run."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "CORNERS",
    "NEWEST",
    "NEXT",
    "NEXT_PYTHON",
    "PYTHONS",
    "ROOT",
    "SPARKS",
    "TENSORFLOWS",
    "Cell",
    "corner",
    "selected",
]

ROOT = Path(__file__).resolve().parents[2]
NEWEST = "newest"
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
SPARKS = ["3.5", "4.0", NEWEST]
TENSORFLOWS = ["2.16", "2.18", NEWEST]
CORNERS = ["oldest", "between", "newest"]
NEXT = {"candidate": "tensorflow", "nightly": "tf-nightly"}  # TensorFlow before its release: column and distribution
NEXT_PYTHON = "3.12"  # the oldest one that the newest JAX takes


@dataclass(frozen=True)
class Cell:
    """A combination of versions, each as ``"3.5"`` or ``"newest"``; of TensorFlow also one of `NEXT`.

    Examples
    --------
    >>> Cell("3.12", "3.5", "newest").name
    '3.12-3.5-newest'
    >>> Cell("3.12", "3.5", "newest").requirements
    ['pyspark==3.5.*', 'tensorflow', 'tf_keras']
    """

    python: str
    spark: str
    tensorflow: str

    @property
    def name(self) -> str:
        """The versions in one word."""
        return f"{self.python}-{self.spark}-{self.tensorflow}"

    @property
    def requirements(self) -> list[str]:
        """What is installed beside this package; tf_keras has the version of its TensorFlow.

        Of a column of `NEXT` only Spark: the rest depends on what there is (`tomorrow.requirements`).
        """
        if self.tensorflow in NEXT:
            return ["pyspark"]
        names = [("pyspark", self.spark), ("tensorflow", self.tensorflow), ("tf_keras", self.tensorflow)]
        return [name if version == NEWEST else f"{name}=={version}.*" for name, version in names]


def selected(
    pythons: Sequence[str] = (), sparks: Sequence[str] = (), tensorflows: Sequence[str] = ()
) -> Iterator[Cell]:
    """Yield the cells with these versions; an empty list stands for all.

    Examples
    --------
    >>> [cell.name for cell in selected(["3.10"], ["3.5"])]
    ['3.10-3.5-2.16', '3.10-3.5-2.18', '3.10-3.5-newest']
    """
    for python in pythons or PYTHONS:
        for spark in sparks or SPARKS:
            for tensorflow in tensorflows or TENSORFLOWS:
                yield Cell(python, spark, tensorflow)


def corner(name: str, available: Callable[[str], bool]) -> Cell:
    """Return a corner of the matrix, with the nearest Python that is available.

    Parameters
    ----------
    name : str
        One of `CORNERS`: the oldest versions of all, the newest ones, or those between.
    available : callable
        Whether there is a Python of this version.

    Returns
    -------
    Cell
        With the Python that the corner should have if none is available.

    Examples
    --------
    >>> corner("oldest", lambda python: python != "3.10").name
    '3.11-3.5-2.16'
    """
    place = CORNERS.index(name)
    wanted = [0, len(PYTHONS) // 2, len(PYTHONS) - 1][place]
    nearest = sorted(PYTHONS, key=lambda python: abs(PYTHONS.index(python) - wanted))
    python = next(filter(available, nearest), nearest[0])
    return Cell(python, SPARKS[place], TENSORFLOWS[place])
