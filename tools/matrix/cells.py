"""Cells of the matrix: combinations of Python, Spark, TensorFlow and Java, and which of them to run."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = [
    "CORNERS",
    "JAVAS",
    "JAVA_PYTHON",
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
    "whole",
]

ROOT = Path(__file__).resolve().parents[2]
NEWEST = "newest"
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
SPARKS = ["3.5", "4.0", NEWEST]
TENSORFLOWS = ["2.16", "2.18", "2.19", NEWEST]
# Beside the one of this machine, with which all other cells run: each with the versions of Spark that start on it.
JAVAS = {"21": SPARKS, "25": [NEWEST]}
JAVA_PYTHON = "3.12"  # with each of them
NEXT = {"candidate": "tensorflow", "nightly": "tf-nightly"}  # TensorFlow before its release: column and distribution
NEXT_PYTHON = "3.12"  # the oldest one that the newest JAX takes
_AHEAD = ["3.14"]  # versions of Python for which TensorFlow has no release yet: the newest is the candidate


@dataclass(frozen=True)
class Cell:
    """A combination of versions, each as ``"3.5"`` or ``"newest"``; of TensorFlow also one of `NEXT`.

    Without a version of Java it has the one of this machine.

    Examples
    --------
    >>> Cell("3.12", "3.5", "newest").name
    '3.12-3.5-newest'
    >>> Cell("3.12", "3.5", "newest").requirements
    ['pyspark==3.5.*', 'tensorflow', 'tf_keras']
    >>> Cell("3.12", "newest", "newest", "21").name
    '3.12-newest-newest-java21'
    """

    python: str
    spark: str
    tensorflow: str
    java: str = ""

    @property
    def name(self) -> str:
        """The versions in one word."""
        return f"{self.python}-{self.spark}-{self.tensorflow}" + (f"-java{self.java}" if self.java else "")

    @property
    def column(self) -> str:
        """The column of `NEXT` whose pre-releases the cell has; empty for one with releases."""
        if self.tensorflow == NEWEST and self.python in _AHEAD:
            return "candidate"
        return self.tensorflow if self.tensorflow in NEXT else ""

    @property
    def requirements(self) -> list[str]:
        """What is installed beside this package; tf_keras has the version of its TensorFlow.

        With pre-releases only Spark: the rest depends on what there is (`tomorrow.requirements`).
        """
        names = [("pyspark", self.spark), ("tensorflow", self.tensorflow), ("tf_keras", self.tensorflow)]
        if self.column:
            names = names[:1]
        return [name if version == NEWEST else f"{name}=={version}.*" for name, version in names]


# What CI runs: the oldest versions, the newest ones that are released, and some between. No pre-release fails CI.
CORNERS = {
    "oldest": Cell(PYTHONS[0], SPARKS[0], TENSORFLOWS[0]),
    "between": Cell("3.12", "4.0", "2.19", "21"),
    "newest": Cell([each for each in PYTHONS if each not in _AHEAD][-1], NEWEST, NEWEST, "25"),
}


def selected(
    pythons: Sequence[str] = (), sparks: Sequence[str] = (), tensorflows: Sequence[str] = (), javas: Sequence[str] = ()
) -> Iterator[Cell]:
    """Yield the cells with these versions; an empty list stands for all, and of Java for the one of this machine.

    Examples
    --------
    >>> [cell.name for cell in selected(["3.10"], ["3.5"])]
    ['3.10-3.5-2.16', '3.10-3.5-2.18', '3.10-3.5-2.19', '3.10-3.5-newest']
    """
    for java in javas or [""]:
        for python in pythons or PYTHONS:
            for spark in sparks or SPARKS:
                for tensorflow in tensorflows or TENSORFLOWS:
                    yield Cell(python, spark, tensorflow, java)


def whole() -> Iterator[Cell]:
    """Yield all cells of the page: all combinations with the Java of this machine, and each Spark with each Java."""
    yield from selected()
    for java, sparks in JAVAS.items():
        yield from selected([JAVA_PYTHON], sparks, [NEWEST], [java])


def corner(name: str, has_python: Callable[[str], bool], has_java: Callable[[str], bool]) -> Cell:
    """Return a corner of the matrix; with the nearest Python that there is, and without its Java if there is none.

    Parameters
    ----------
    name : str
        One of `CORNERS`.
    has_python, has_java : callable
        Whether there is one of this version.

    Returns
    -------
    Cell
        With the Python that the corner should have if none is available.

    Examples
    --------
    >>> corner("oldest", lambda python: python != "3.10", lambda _: False).name
    '3.11-3.5-2.16'
    """
    wanted = CORNERS[name]
    place = PYTHONS.index(wanted.python)
    nearest = sorted(PYTHONS, key=lambda python: abs(PYTHONS.index(python) - place))
    python = next(filter(has_python, nearest), wanted.python)
    return replace(wanted, python=python, java=wanted.java if has_java(wanted.java) else "")
