"""The control plane at scale: a driver with up to a thousand nodes, which other processes of this machine simulate.

The driver's `Cluster`, and everything below it but Spark, is the real one, in a process of its own: its memory, threads
and processor time are measured without those of the nodes. Each node has its own connection and sends the messages of a
real one. The other part has up to sixteen real nodes, which train together until one of them is killed.
"""

import math
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, plot, table, targets
from benchmarks.common.rounds import Contender, take_turns

# By name: title, place in a round's result, unit, and format.
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

# By name in a round's result with real nodes: title.
_FORKED = {"forked": "nodes that were forked, at the start", "forked again": "nodes that were forked, after the kill"}
_REAL = {
    "up": "all nodes up, from the start",
    "step": "first step done by all, from the start",
    "error": "the driver's error, from the kill of one",
    "again": "next step done by all, from the kill",
}


def figures(results, name, count):
    """Return one figure of every round with this number of nodes."""
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
    """Return the power of the number of nodes by which a figure grows, over the last factor of ten."""
    last = counts(results)[-1]
    points = [(math.log(each), math.log(median(figures(results, name, each)))) for each in counts(results)]
    points = [(x, y) for x, y in points if x >= math.log(last / 10) - 1e-9]
    x, y = (sum(each) / len(points) for each in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def report(results):
    """Return the section of the page: each figure for each number of nodes, and its growth."""
    numbers = counts(results)
    shown = [
        [title, *[shape.format(median(figures(results, name, each))) + unit for each in numbers]]
        for name, (title, _, unit, shape) in _FIGURES.items()
    ]
    head = ["nodes", *[f"{each:,}" for each in numbers]]
    found = targets(TARGETS, results) if numbers[-1] == _LARGEST else {}
    return {**found, "figures": "\n\n".join([results["about"], table(head, shown), _growth(results)])}


def report_all(results):
    """Return the sections of all parts that have results."""
    return {**(report(results) if "nodes" in results else {}), **(_report_real(results) if "real" in results else {})}


def _report_real(results):
    found = results["real"]
    rows = [
        [title, *[median_and_range([each[name] for each in rounds]) for rounds in found.values()]]
        for name, title in _REAL.items()
    ]
    for name, title in _FORKED.items():
        if all(name in each for rounds in found.values() for each in rounds):
            shown = [median_and_range([each[name] for each in rounds], "{:.0f}", "") for rounds in found.values()]
            rows.append([title, *shown])
    return {"real": "\n\n".join([results["about real"], table(["real nodes", *found], rows)])}


_LARGEST = 1000
TARGETS = [
    Target(
        "bring-up of 1,000 nodes: the driver's processor time",
        lambda results: median(figures(results, "up cpu", _LARGEST)),
        3,
        "{:.2f} s",
        at_least=False,
    ),
    Target(
        "bring-up: the driver's processor time from 100 to 1,000 nodes grows with n to the power of",
        lambda results: exponent(results, "up cpu"),
        1.2,
        at_least=False,
    ),
]


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
    return table(["growth", f"from {last // 10:,} to {last:,} nodes", "per node", f"{last:,} nodes"], rows)


def draw(results, path):
    """Draw the curves, both axes logarithmic."""
    if "nodes" not in results:
        return
    with plot(path, len(_PANELS), figsize=(12, 4.2)) as (_, panels):
        for axes, (title, names) in zip(panels, _PANELS.items(), strict=True):
            _draw_panel(axes, results, names)
            axes.set_title(title, loc="left", fontweight="bold")


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


def measure(options, log):
    """Run the rounds of the parts."""
    if "simulated" in options.parts:
        yield measure_simulated(options, log)
    if "real" in options.parts:
        yield measure_real(options, log)


def measure_real(options, log):
    """Run the rounds with real nodes; a first cluster starts Spark and the fork server."""
    with Contender(["-m", "benchmarks.scale.real"], log) as driver:
        driver.round({"nodes": options.real[0]})
        turns = {str(count): driver.turn(nodes=count) for count in options.real}
        found = take_turns(turns, options.rounds, "real nodes", shown=_real_summary, warm_up=False)
    return {"about real": circumstances(options), "real": found}


def _real_summary(found):
    return ", ".join(f"{name} {found[name]:.2f} s" for name in _REAL) + f", {found['forked']} nodes forked"


def measure_simulated(options, log):
    """Run the rounds; each has a new driver, so that none reuses the memory of another."""

    def turn(count):
        def once():
            with Contender(["-m", "benchmarks.scale.driver"], log) as driver:
                return driver.round({"nodes": count})

        return once

    turns = {str(count): turn(count) for count in options.nodes}
    found = take_turns(turns, options.rounds, "nodes", shown=_summary, warm_up=False)
    about = circumstances(options, packages=("tensorflowonspark", "pyarrow"), warm_up=False)
    return {"about": about, "nodes": found}


def _summary(found):
    up, down, death = found["up"], found["down"], found["death"]
    return f"up {up['seconds']:.2f} s, a death noticed {death['noticed']:.3f} s, down {down['seconds']:.2f} s"


def main():
    """Run the benchmark."""
    parser = command("scale", __doc__, parts=("simulated", "real"))
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 10, 30, 100, 300, 1000])
    parser.add_argument("--real", type=int, nargs="+", default=[2, 4, 8, 16], help="numbers of real nodes")
    run(parser, measure, report_all, draw)


if __name__ == "__main__":
    main()
