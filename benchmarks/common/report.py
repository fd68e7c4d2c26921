"""Reports: tables in Markdown, targets, circumstances and plots."""

import os
import statistics
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.published import table, versions

_PACKAGES = ("tensorflowonspark", "pyspark", "pyarrow", "tensorflow", "keras")


def circumstances(options, *further, packages=_PACKAGES, warm_up=True):
    """Return how figures were found: command, date, versions, cores and rounds."""
    rounds = f"median of {options.rounds}{' after a warm-up' if warm_up else ''}, and the range"
    found = [f"`{options.command}`, {versions(*packages)}", f"{os.cpu_count()} cores", rounds, *further]
    return f"{'; '.join(found)}."


def median_and_range(values, shown="{:.2f}", unit=" s"):
    """Return 'median (lowest to highest)'."""
    median, low, high = (shown.format(each) for each in (statistics.median(values), min(values), max(values)))
    return f"{median}{unit} ({low} to {high})"


def ratios(found, ours, other, what):
    """Return the ratio of a figure of two contenders in each round."""
    return [one[what] / two[what] for one, two in zip(found[ours], found[other], strict=True)]


def percent(part):
    """Return a part of one in per cent."""
    return f"{part:.0%}" if part >= 0.1 else f"{part:.1%}"


@dataclass(frozen=True)
class Target:
    """A figure and its bound.

    Parameters
    ----------
    title : str
        What is measured.
    measure : callable
        From all results to the figure; raises KeyError when they lack it.
    bound : float
        The target.
    shown : str
        The format of figure and bound, with their unit.
    at_least : bool
        Whether the figure must reach the bound, or not exceed it.
    optional : bool
        Whether the other targets are reported without this one.
    """

    title: str
    measure: Callable[[dict], float]
    bound: float
    shown: str = "{:.2f}"
    at_least: bool = True
    optional: bool = False

    def row(self, results):
        """Return title, target, measured figure and verdict."""
        bound = f"at {'least' if self.at_least else 'most'} {self.shown.format(self.bound)}"
        try:
            figure = self.measure(results)
        except KeyError:
            if self.optional:
                return [self.title, bound, "not run", ""]
            raise
        met = figure >= self.bound if self.at_least else figure <= self.bound
        return [self.title, bound, self.shown.format(figure), "met" if met else "**missed**"]


def targets(wanted, results):
    """Return the page's section of targets, as a dict; empty unless the results have all figures."""
    try:
        rows = [target.row(results) for target in wanted]
    except KeyError:
        return {}
    return {"targets": table(["what", "target", "measured", "met or missed"], rows)}


def put_into(page, sections):
    """Replace sections of a page, each of which stands between two comments that name it."""
    text = page.read_text()
    for name, section in sections.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        if begin not in text:
            raise ValueError(f"{page} has no section {name!r}: it needs the lines {begin.strip()} and {end.strip()}")
        before, rest = text.split(begin, 1)
        text = f"{before}{begin}{section}{end}{rest.split(end, 1)[1]}"
    page.write_text(text)


@contextmanager
def plot(path, columns=1, **settings):
    """Yield a figure and its axes in a row; save it as a picture.

    Parameters
    ----------
    path : pathlib.Path
        Of the picture.
    columns : int
        How many axes.
    **settings
        Of ``matplotlib.pyplot.subplots``.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, columns, layout="constrained", **settings)
    yield figure, axes
    figure.savefig(path, dpi=150)
    plt.close(figure)
