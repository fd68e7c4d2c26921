"""From the death of a node to the driver's error, and to the next step of the training after a restart.

Two workers of a `MultiWorkerMirroredStrategy` train with Keras on rows that ``cluster.train`` feeds, on ``local[2]``;
one of them is killed during the training. A new cluster in the same application, up to its first step, is measured
beside it. All of it runs with warm nodes, and without. In another training, whose workers average their weights in
rounds, the others also go on without the killed one, or it alone is started again (`benchmarks/recovery/ways.py`).
"""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, plot, table, targets
from benchmarks.common.rounds import Contender, take_turns
from benchmarks.recovery.ways import WAYS, WINDOW

_PARTS = {
    "noticed": ("the driver has noticed", "#cb181d"),
    "gone": ("the old nodes are gone", "#fc9272"),
    "up": ("new nodes are placed and up", "#08306b"),
    "imported": ("TensorFlow is imported", "#2171b5"),
    "built": ("strategy and model are built", "#6baed6"),
    "fed": ("all rows have been fed", "#9e9ac8"),
    "restored": ("the checkpoint is restored", "#74c476"),
    "step": ("the first step is done", "#238b45"),
}
_MODES = {"warm": "warm nodes", "cold": "without warm nodes"}
_BARS = {"recovery": "from the kill to the next step", "fresh": "a fresh cluster, to its first step"}
TARGETS = [
    Target(
        "kill to the driver's error, median",
        lambda results: max(median(_noticed(found)) for found in results["modes"].values()),
        1,
        "{:.2f} s",
        at_least=False,
    ),
    Target(
        "kill to the driver's error, longest",
        lambda results: max(max(_noticed(found)) for found in results["modes"].values()),
        3,
        "{:.2f} s",
        at_least=False,
    ),
    Target(
        "kill to the next step, warm nodes",
        lambda results: median(each["all"] for each in results["modes"]["warm"]["recovery"]),
        4,
        "{:.2f} s",
        at_least=False,
    ),
    Target(
        "kill to the next step without warm nodes, above a fresh cluster",
        lambda results: median(_above(results["modes"]["cold"])),
        3,
        "{:.2f} s",
        at_least=False,
    ),
]


def measure(options, log):
    """Run the rounds of each part."""
    with Contender(["-m", "benchmarks.recovery.contender"], log) as contender:
        for part in options.parts.split(","):
            yield {"restart": _measure_restarts, "ways": _measure_ways}[part](options, contender)


def _measure_ways(options, contender):
    turns = {way: contender.turn(measure=way, warm=True) for way in WAYS}
    ways = take_turns(turns, options.rounds, "ways", shown=_summary)
    return {"ways_about": circumstances(options), "ways": ways}


def _measure_restarts(options, contender):
    turns = {
        (mode, what): contender.turn(measure=what, warm=mode == "warm")
        for what in ("notice", "fresh", "recovery")
        for mode in _MODES
    }
    found = take_turns(turns, options.rounds, "recovery", shown=_summary)
    modes = {mode: {what: each for (of, what), each in found.items() if of == mode} for mode in _MODES}
    return {"about": circumstances(options), "modes": modes}


def _summary(found):
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in found.items())


def _noticed(found):
    return [each["noticed"] for each in found["notice"]]


def _above(found):
    """Return the seconds of each recovery above those of the fresh cluster of its round."""
    return [one["all"] - other["all"] for one, other in zip(found["recovery"], found["fresh"], strict=True)]


def report(results):
    """Return the sections of the page."""
    sections = {}
    if "modes" in results:
        modes = results["modes"]
        figures = "\n\n".join([results["about"], _totals(modes), _parts(modes)])
        sections |= {**targets(TARGETS, results), "figures": figures}
    if "ways" in results:
        sections["ways"] = f"{results['ways_about']}\n\n{_ways(results['ways'])}"
    return sections


def _ways(ways):
    head = ["", "longest pause of the other worker", "until the killed one's next step", f"steps in {WINDOW:g} s"]
    rows = [
        [
            WAYS[way][0],
            median_and_range([each["pause"] for each in found]),
            median_and_range([each["all"] for each in found]) if "all" in found[0] else "never",
            median_and_range([each["steps"] for each in found], "{:.0f}", ""),
        ]
        for way, found in ways.items()
    ]
    return table(head, rows)


def _totals(modes):
    rows = []
    for mode, found in modes.items():
        again, fresh = ([each["all"] for each in found[what]] for what in ("recovery", "fresh"))
        rows.append([_MODES[mode], *map(median_and_range, (_noticed(found), again, fresh, _above(found)))])
    head = ["", "kill to the driver's error", "kill to the next step", "fresh cluster to its first step", "above it"]
    return table(head, rows)


def _parts(modes):
    head = ["seconds until", *[f"{_MODES[mode]}: {_BARS[what]}" for mode in modes for what in _BARS]]
    rows = []
    for part, (title, _) in _PARTS.items():
        found = [[each[part] for each in modes[mode][what] if part in each] for mode in modes for what in _BARS]
        rows.append([title, *[median_and_range(each, unit="") if each else "" for each in found]])
    return table(head, rows)


def draw(results, path):
    """Draw a stacked bar for each mode and measure."""
    if "modes" not in results:
        return
    from matplotlib.patches import Patch

    bars = [(mode, what) for mode in results["modes"] for what in _BARS]
    with plot(path, figsize=(10, 1.6 + 0.55 * len(bars))) as (figure, axes):
        for y, (mode, what) in enumerate(bars):
            _draw_bar(axes, y, results["modes"][mode][what])
        titles = [f"{_MODES[mode]}:\n{_BARS[what]}" for mode, what in bars]
        axes.set(yticks=range(len(bars)), yticklabels=titles, xlabel="seconds (medians of the parts)")
        axes.invert_yaxis()
        axes.set_title("A node is killed: the parts of the time until training goes on", loc="left", fontweight="bold")
        handles = [Patch(color=colour, label=title) for title, colour in _PARTS.values()]
        figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False, fontsize=8)


def _draw_bar(axes, y, rounds):
    left = 0.0
    all_parts = median([each["all"] for each in rounds])
    for part, (_, colour) in _PARTS.items():
        if part in rounds[0]:
            width = median([each[part] for each in rounds])
            axes.barh(y, width, 0.6, left=left, color=colour)
            if width > 0.03 * all_parts:  # room for a number
                axes.text(left + width / 2, y, f"{width:.1f}", ha="center", va="center", fontsize=7.5, color="white")
            left += width
    axes.text(left + 0.05, y, f"{left:.1f} s", va="center", fontsize=9, fontweight="bold")


if __name__ == "__main__":
    run(command("recovery", __doc__, parts=("restart", "ways")), measure, report, draw)
