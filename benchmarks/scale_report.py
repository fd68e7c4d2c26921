"""The tables of scale.py, as Markdown, and its picture."""

import math
from pathlib import Path
from statistics import median

from rounds import median_and_range, table

PAGE = Path(__file__).parent.parent / "docs/benchmarks/scale.md"

# What is measured: title, where it is in a round's results, its unit, and how a number of units is shown.
_FIGURES = {
    "up": ("all nodes up", ("up", "seconds"), " s", "{:.2f}"),
    "up cpu": ("all nodes up: the driver's processor time", ("up", "cpu"), " s", "{:.3f}"),
    "memory": ("memory of the driver", ("up", "memory"), " MB", "{:.1f}"),
    "threads": ("threads of the driver", ("up", "threads"), "", "{:.0f}"),
    "files": ("open files of the driver", ("up", "files"), "", "{:.0f}"),
    "rest": ("one core's share while nothing happens", ("rest", "cpu"), " %", "{:.1f}"),
    "noticed": ("a death: until the driver's error", ("death", "noticed"), " s", "{:.3f}"),
    "ended": ("a death: until all others have ended", ("death", "ended"), " s", "{:.2f}"),
    "down": ("shutdown", ("down", "seconds"), " s", "{:.2f}"),
    "down cpu": ("shutdown: the driver's processor time", ("down", "cpu"), " s", "{:.3f}"),
}
_PANELS = {
    "Seconds": {"up": "#2171b5", "down": "#6baed6", "noticed": "#d94801"},
    "The driver's processor seconds": {"up cpu": "#2171b5", "down cpu": "#6baed6"},
    "The driver's memory and threads": {"memory": "#54278f", "threads": "#9e9ac8"},
}


def figures(results, name, count):
    """Return what was found of one figure for so many nodes, one number of each round."""
    _, (part, what), _, _ = _FIGURES[name]
    found = [each[part][what] for each in results["nodes"][str(count)]]
    if name == "memory":
        return [each / 1e6 for each in found]
    if name == "rest":
        return [100 * each[part]["cpu"] / each[part]["seconds"] for each in results["nodes"][str(count)]]
    return found


def counts(results):
    """Return the numbers of nodes."""
    return sorted(map(int, results["nodes"]))


def exponent(results, name):
    """Return by which power of the number of nodes a figure grows, over the last tenfold of it."""
    last = counts(results)[-1]
    points = [(math.log(each), math.log(median(figures(results, name, each)))) for each in counts(results)]
    points = [(x, y) for x, y in points if x >= math.log(last / 10) - 1e-9]
    x, y = (sum(each) / len(points) for each in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def report(results):
    """Return the tables: each figure for each number of nodes, and how it grows."""
    numbers = counts(results)
    shown = [
        [title, *[shape.format(median(figures(results, name, each))) + unit for each in numbers]]
        for name, (title, _, unit, shape) in _FIGURES.items()
    ]
    head = ["nodes", *[f"{each:,}" for each in numbers]]
    return "\n\n".join([f"{results['about']}.", table(head, shown), _growth(results)])


def _growth(results):
    last = counts(results)[-1]
    rows = []
    for name, (title, _, unit, shape) in _FIGURES.items():
        found = figures(results, name, last)
        each = median(found) / last * 1000
        thousandth = {" s": " ms", " MB": " kB", " %": " % / 1,000"}.get(unit, " / 1,000")
        rows.append(
            [title, f"n^{exponent(results, name):.2f}", f"{each:.2f}{thousandth}", median_and_range(found, shape, unit)]
        )
    return table(["growth", f"from {last // 10:,} to {last:,} nodes", "a node of the most", f"{last:,} nodes"], rows)


def draw(results, path):
    """Draw the curves, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(1, len(_PANELS), figsize=(12, 4.2), layout="constrained")
    for axes, (title, names) in zip(panels, _PANELS.items(), strict=True):
        _draw_panel(axes, results, names)
        axes.set_title(title, loc="left", fontweight="bold")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_panel(axes, results, names):
    numbers = counts(results)
    for name, colour in names.items():
        title, _, unit, _ = _FIGURES[name]
        found = [figures(results, name, each) for each in numbers]
        label = f"{title}{',' + unit if unit == ' MB' else ''}: n^{exponent(results, name):.2f}"
        axes.plot(numbers, [median(each) for each in found], "o-", color=colour, label=label, markersize=4)
        axes.fill_between(
            numbers, [min(each) for each in found], [max(each) for each in found], color=colour, alpha=0.2
        )
    first = median(figures(results, next(iter(names)), numbers[-1])) / numbers[-1]
    axes.plot(numbers, [first * each for each in numbers], ":", color="grey", label="growth with n (for comparison)")
    axes.set(xscale="log", yscale="log", xlabel="nodes", xticks=numbers, xticklabels=[f"{each:,}" for each in numbers])
    axes.minorticks_off()
    axes.legend(loc="upper left", fontsize=7.5, frameon=False)
