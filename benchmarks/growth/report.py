"""The report: the exponent of each cost, its tables, and the picture."""

import math
from statistics import median

from benchmarks.common.report import median_and_range, plot, table
from benchmarks.growth.parts import PARTS

_MOST_POINTS = 3  # of an exponent
_LEAST = 1e-6  # of a cost: memory may not have grown
_RISEN = 2  # times the cost of the smallest size: below, a cost is constant
_PANELS = {
    "Rows that Spark's tasks send": ("partitions", "columns", "rows", "inference"),
    "Files of the nodes": ("files", "checkpoints"),
    "Nodes, and clusters one after another": ("played", "real", "trials"),
}
_COLOURS = "#2171b5", "#d94801", "#54278f", "#238b45"


def medians(found, name):
    """Return the median of one cost by size."""
    return {int(size): median(each[name] for each in rounds) for size, rounds in found.items()}


def exponent(costs):
    """Return the power of the size by which a cost grows: the slope of a least-squares line of log cost on log size.

    It is that of the last three sizes, without those whose cost is less than twice that of the smallest size, which is
    constant; but of the last two at least.

    Parameters
    ----------
    costs : dict of int to float
        By size, in ascending order.
    """
    points = [(math.log(size), math.log(max(cost, _LEAST))) for size, cost in costs.items()]
    constant = points[0][1] + math.log(_RISEN)
    upper = [point for point in points[-_MOST_POINTS:-2] if point[1] >= constant] + points[-2:]
    x, y = (sum(each) / len(upper) for each in zip(*upper, strict=True))
    return sum((a - x) * (b - y) for a, b in upper) / sum((a - x) ** 2 for a, _ in upper)


def shown(result):
    """Return one round's costs for the progress output."""
    return ", ".join(f"{name} {_format(value).format(value)}" for name, value in result.items())


def report(results):
    """Return the sections of the page: the growth of all, and a table for each part that has results."""
    measured = [name for name in PARTS if name in results]
    rows = [
        _growth(PARTS[name], cost, medians(results[name]["found"], key))
        for name in measured
        for key, cost in PARTS[name].costs.items()
    ]
    head = ["what", "from", "to", "cost at each", "exponent", "target", "met or missed"]
    return {"targets": table(head, rows), **{name: _figures(PARTS[name], results[name]) for name in measured}}


def _growth(part, cost, costs):
    found = exponent(costs)
    first, *_, last = costs
    each = ", ".join(_format(value).format(value) for value in costs.values())
    ends = [f"{first:,} {part.what}", f"{last:,}", f"{each}{cost.unit}", f"{found:.2f}"]
    if cost.bound is None:
        return [cost.title, *ends, "", ""]
    met = "met" if found <= cost.bound else "**missed**"
    return [cost.title, *ends, f"at most {cost.bound:.2f}", met]


def _figures(part, results):
    found = results["found"]
    rows = []
    for name, cost in part.costs.items():
        rounds = [[each[name] for each in of] for of in found.values()]
        rows.append([cost.title, *[_with_range(each, cost.unit) for each in rounds]])
    once = [f"{int(size):,}" for size, of in found.items() if len(of) == 1]
    single = f" One round of {' and '.join(once)} {part.what}." if once else ""
    return f"{results['about']}{single}\n\n{table([part.what, *[f'{int(size):,}' for size in found]], rows)}"


def _with_range(values, unit):
    shape = _format(median(values))
    return median_and_range(values, shape, unit) if len(values) > 1 else f"{shape.format(values[0])}{unit}"


def _format(value):
    """Return a format of three digits, or of all before the point."""
    return f"{{:,.{max(0, min(3, 2 - math.floor(math.log10(value))))}f}}" if value > 0 else "{:.0f}"


def draw(results, path):
    """Draw the seconds of all parts that have results, both axes logarithmic."""
    panels = {title: [name for name in names if name in results] for title, names in _PANELS.items()}
    panels = {title: names for title, names in panels.items() if names}
    with plot(path, len(panels), figsize=(4 * len(panels), 4.6), squeeze=False) as (_, axes):
        for one, (title, names) in zip(axes[0], panels.items(), strict=True):
            _draw_panel(one, results, names)
            one.set_title(title, loc="left", fontweight="bold")


def _draw_panel(axes, results, names):
    sizes = []
    for name, colour in zip(names, _COLOURS, strict=False):
        costs = {key: cost for key, cost in PARTS[name].costs.items() if cost.unit == " s"}
        for (key, cost), style in zip(costs.items(), ("o-", "s--", "^:"), strict=False):
            found = medians(results[name]["found"], key)
            label = f"{PARTS[name].what}: {cost.title}: n^{exponent(found):.2f}"
            axes.plot(list(found), list(found.values()), style, color=colour, label=label, markersize=3, linewidth=1)
            sizes += found
    first = medians(results[names[0]]["found"], next(iter(PARTS[names[0]].costs)))
    last = max(first)
    ends = [min(sizes), max(sizes)]
    axes.plot(ends, [first[last] * end / last for end in ends], ":", color="grey", label="growth with n")
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel="seconds")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=6.5, frameon=False)
