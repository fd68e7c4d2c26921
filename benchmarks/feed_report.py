"""The tables of feed.py, as Markdown, and its picture."""

from pathlib import Path
from statistics import median

from feed_fit import TITLES
from feed_rows import KINDS
from rounds import median_and_range, share, table

PICTURE = Path(__file__).parent.parent / "docs/benchmarks/feed.png"

_ROADS = {
    "limit": "a Spark job that only counts the batches",
    "memory": "ours, kept in memory",
    "disk": "ours, kept on disk (the default)",
    "disk, shuffled": "ours, kept on disk, and shuffled",
    "none": "ours, streamed",
    "2.2.5": "TensorFlowOnSpark 2.2.5",
}
_PASSES = {
    "numpy": "ours, numpy batches",
    "dataset": "ours, `tf.data`",
    "in memory": "`tf.data` over numpy arrays in memory",
}
_COLOURS = {"memory": "#9ecae1", "disk": "#2171b5", "disk, shuffled": "#6baed6", "none": "#08306b", "2.2.5": "#d94801"}


def report(results):
    """Return all tables that there are results for."""
    parts = {"A": _throughput, "B": _epochs, "C": _training, "D": _memory, "E": _rdd}
    told = []
    for name, make in parts.items():
        if f"about {name}" in results:
            about = results[f"about {name}"]
            told += [f"Part {name}: {about['text']}.", make(results, about["rows"])]
    return "\n\n".join(told)


def _throughput(results, counts):
    found = [kind for kind in KINDS if f"A {kind}" in results]
    return "\n\n".join(_one_kind(KINDS[kind], results[f"A {kind}"], *counts[kind]) for kind in found)


def _one_kind(what, rates, count, old_count):
    best = median(rates["limit"])
    rows = []
    for road, title in _ROADS.items():
        each = rates[road]
        part, size = median(each) / best, median(each) * what.row_bytes / 1e6
        rows.append([title, share(part), median_and_range(each, "{:,.0f}", "/s"), f"{size:,.1f} MB/s"])
    head = f"**{what.title}**: {count:,} rows, {count * what.row_bytes / 1e9:.2f} GB (2.2.5: {old_count:,} rows)"
    return f"{head}\n\n" + table(["road", "of the limit", "rows", "bytes"], rows)


def _later(rounds):
    """Return the seconds of each round's second epoch on."""
    return [median(seconds[1:]) for seconds in rounds]


def _epochs(results, counts):
    found = {name: _later(rounds) for name, rounds in results["B"].items()}
    size = counts["floats"][0] * KINDS["floats"].row_bytes / 1e9
    best = median(found["in memory"])
    rows = []
    for name, title in _PASSES.items():
        speed = median_and_range([size / each for each in found[name]], "{:.2f}", " GB/s")
        rows.append([title, f"{median(found[name]) / best:.2f}", speed])
    return table(["a pass over all rows, shuffled", "times the time in memory", "speed"], rows)


def _training(results, _counts):
    rows = []
    for model in (each for each in TITLES if f"C {each}" in results):
        found = {name: _later(rounds) for name, rounds in results[f"C {model}"].items()}
        ratio = median(found["ours"]) / median(found["in memory"])
        rows.append(
            [TITLES[model], f"{ratio:.2f}", median_and_range(found["ours"]), median_and_range(found["in memory"])]
        )
    return table(["model", "times the time in memory", "fed from Spark", "arrays in memory"], rows)


def _memory(results, counts):
    rows = []
    for partitions, rounds in results["D"].items():
        size = counts["stream"] * KINDS["floats"].row_bytes / 1e6 / int(partitions)
        for role in ("node", "python worker", "files in memory"):
            grown, start = ([each[role][number] / 1e6 for each in rounds] for number in (0, 1))
            growth = median_and_range(grown, "{:.0f}", " MB")
            rows.append([f"{partitions} of {size:.0f} MB", role, growth, f"{median(start):.0f} MB"])
    return table(["partitions", "memory of", "highest growth", "before"], rows)


def _rdd(results, _counts):
    slow = median(results["E"]["2.2.5"])
    rows = [
        [title, f"{median(results['E'][name]) / slow:.0f}", median_and_range(results["E"][name], "{:,.0f}", "/s")]
        for name, title in (("ours", "ours"), ("2.2.5", _ROADS["2.2.5"]))
    ]
    return table(["road", "times 2.2.5", "rows"], rows)


def draw(results, path):
    """Draw the parts A to C, if all of them are there."""
    needed = {"B", *(f"A {kind}" for kind in KINDS), *(f"C {model}" for model in TITLES)}
    if not needed <= results.keys():
        return
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5.2), width_ratios=[3, 2], layout="constrained")
    _draw_throughput(left, results)
    _draw_epochs(right, results)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_throughput(axes, results):
    roads = list(_COLOURS)
    for group, kind in enumerate(KINDS):
        rates = results[f"A {kind}"]
        for place, road in enumerate(roads):
            share = 100 * median(rates[road]) / median(rates["limit"])
            y = group + (place - 2) * 0.17
            axes.barh(y, share, 0.15, color=_COLOURS[road], label=_ROADS[road] if not group else None)
            axes.text(share + 1, y, f"{share:.0f} %" if share >= 10 else f"{share:.1f} %", va="center", fontsize=7)
    axes.axvline(100, color="black", linewidth=1)
    axes.set(yticks=range(len(KINDS)), yticklabels=[_wrapped(kind.title) for kind in KINDS.values()])
    axes.set(xlim=(0, 118), xlabel="rows per second, in % of a Spark job that only counts the batches (line)")
    axes.invert_yaxis()
    axes.set_title("From Spark into the training function", loc="left", fontweight="bold")
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=5, frameon=False, fontsize=8)


def _draw_epochs(axes, results):
    runs = {"no model:\na pass over the rows": (results["B"]["dataset"], results["B"]["in memory"])}
    for model, title in TITLES.items():
        found = results[f"C {model}"]
        runs[_wrapped(title.replace(": ", ":\n"))] = (found["ours"], found["in memory"])
    ratios = [median(_later(ours)) / median(_later(others)) for ours, others in runs.values()]
    axes.barh(range(len(runs)), ratios, 0.5, color=_COLOURS["disk"])
    for y, ratio in enumerate(ratios):
        axes.text(0.05, y, f"{ratio:.2f}", va="center", fontsize=9, color="white", fontweight="bold")
    axes.axvline(1, color="black", linewidth=1)
    axes.set(yticks=range(len(runs)), yticklabels=list(runs), xlim=(0, 1.1 * max(1, *ratios)))
    axes.set_xlabel("time of an epoch, relative to numpy arrays\nin memory (line): less is better")
    axes.invert_yaxis()
    axes.set_title("Later epochs, on one worker", loc="left", fontweight="bold")


def _wrapped(title):
    import textwrap

    unbroken = title.replace("Dense ", "Dense\N{NO-BREAK SPACE}")
    return "\n".join(line for part in unbroken.split("\n") for line in textwrap.wrap(part, 24))
