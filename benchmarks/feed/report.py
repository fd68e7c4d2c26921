"""The tables and the picture of the feed benchmark."""

import textwrap
from statistics import median

from benchmarks.common.report import Target, median_and_range, percent, plot, table, targets
from benchmarks.feed.rows import KINDS
from benchmarks.feed.training import TITLES

_FEEDS = {
    "limit": "a Spark job that only counts the batches",
    "memory": "ours, cached in memory",
    "disk": "ours, cached on disk (the default)",
    "disk, shuffled": "ours, cached on disk, and shuffled",
    "none": "ours, streamed",
    "2.2.5": "TensorFlowOnSpark 2.2.5",
}
_PASSES = {
    "numpy": "ours, numpy batches",
    "dataset": "ours, `tf.data`",
    "in memory": "`tf.data` over numpy arrays in memory",
}
_COLOURS = {"memory": "#9ecae1", "disk": "#2171b5", "disk, shuffled": "#6baed6", "none": "#08306b", "2.2.5": "#d94801"}


def _ratio(results, kind, feed, other):
    rates = results["throughput"]["found"][kind]
    return median(rates[feed]) / median(rates[other])


def _throughput_targets():
    for feed in ("disk", "none"):
        title = _FEEDS[feed].removeprefix("ours, ")
        yield Target(
            f"784 float32, {title}: times 2.2.5", lambda results, feed=feed: _ratio(results, "floats", feed, "2.2.5"),
            60, "{:.0f}",
        )  # fmt: skip
        for kind in ("floats", "bytes"):
            yield Target(
                f"{KINDS[kind].title.removesuffix(' + label')}, {title}: part of the limit",
                lambda results, feed=feed, kind=kind: _ratio(results, kind, feed, "limit"),
                0.9,
            )
    for kind in ("columns", "100 columns"):
        yield Target(
            f"{KINDS[kind].title.removesuffix(' + label')}, shuffled: part of the limit",
            lambda results, kind=kind: _ratio(results, kind, "disk, shuffled", "limit"),
            0.6,
        )


def _growth(results):
    """Return the highest median growth of a node or a Python worker, in MB."""
    growths = [
        median(each[role][0] / 1e6 for each in rounds)
        for rounds in results["memory"]["found"]["stream"].values()
        for role in ("node", "python worker")
    ]
    return max(growths)


TARGETS = [
    *_throughput_targets(),
    Target(
        "a program of 2.x, times 2.2.5",
        lambda results: median(results["2x"]["found"]["rdd"]["ours"]) / median(results["2x"]["found"]["rdd"]["2.2.5"]),
        25,
        "{:.0f}",
    ),
    Target("a later epoch, numpy batches", lambda results: _speed(results, "numpy"), 1, "{:.2f} GB/s"),
    Target("a later epoch, `tf.data`", lambda results: _speed(results, "dataset"), 1, "{:.2f} GB/s"),
    Target(
        "a later epoch, `tf.data`: times the time in memory",
        lambda results: median(_speeds(results, "in memory")) / _speed(results, "dataset"),
        1,
        at_least=False,
    ),
    *(
        Target(
            f"an epoch of `fit`, {model} model: times the time in memory",
            lambda results, model=model: _training_ratio(results, model),
            bound,
            at_least=False,
        )
        for model, bound in (("small", 1.1), ("middle", 1.02), ("large", 1.02))
    ),
    Target(
        "growth of a process while 640 MB pass through a stream that holds at most 64 MB",
        _growth,
        64,
        "{:.0f} MB",
        at_least=False,
    ),
]


def report(results):
    """Return the sections of the page."""
    makers = {
        "throughput": _throughput, "2x": _program_of_2x, "epochs": _epochs, "training": _training, "memory": _memory,
    }  # fmt: skip
    sections = targets(TARGETS, results)
    for part in (part for part in makers if part in results):
        sections[part] = f"{results[part]['about']}\n\n{makers[part](results)}"
    return sections


def _throughput(results):
    part = results["throughput"]
    return "\n\n".join(_one_kind(KINDS[kind], found, *part["rows"][kind]) for kind, found in part["found"].items())


def _one_kind(kind, rates, count, old_count):
    best = median(rates["limit"])
    rows = []
    for feed, title in _FEEDS.items():
        each = rates[feed]
        part, size = median(each) / best, median(each) * kind.row_bytes / 1e6
        rows.append([title, percent(part), median_and_range(each, "{:,.0f}", "/s"), f"{size:,.1f} MB/s"])
    head = f"**{kind.title}**: {count:,} rows, {count * kind.row_bytes / 1e9:.2f} GB (2.2.5: {old_count:,} rows)"
    return f"{head}\n\n" + table(["feed", "of the limit", "rows", "bytes"], rows)


def _program_of_2x(results):
    rates = results["2x"]["found"]["rdd"]
    slow = median(rates["2.2.5"])
    rows = [
        [title, f"{median(rates[name]) / slow:.0f}", median_and_range(rates[name], "{:,.0f}", "/s")]
        for name, title in (("ours", "ours"), ("2.2.5", _FEEDS["2.2.5"]))
    ]
    return table(["program of 2.x with", "times 2.2.5", "rows"], rows)


def _later(rounds):
    """Return the median seconds of each round's epochs after the first."""
    return [median(seconds[1:]) for seconds in rounds]


def _speeds(results, name):
    size = results["epochs"]["rows"]["floats"][0] * KINDS["floats"].row_bytes / 1e9
    return [size / each for each in _later(results["epochs"]["found"]["floats"][name])]


def _speed(results, name):
    return median(_speeds(results, name))


def _epochs(results):
    found = {name: _later(rounds) for name, rounds in results["epochs"]["found"]["floats"].items()}
    best = median(found["in memory"])
    rows = [
        [title, f"{median(found[name]) / best:.2f}", median_and_range(_speeds(results, name), "{:.2f}", " GB/s")]
        for name, title in _PASSES.items()
    ]
    return table(["a pass over all rows, shuffled", "times the time in memory", "speed"], rows)


def _training_ratio(results, model):
    found = results["training"]["found"][model]
    return median(_later(found["ours"])) / median(_later(found["in memory"]))


def _training(results):
    rows = []
    for model, found in results["training"]["found"].items():
        seconds = [median_and_range(_later(found[name])) for name in ("ours", "in memory")]
        rows.append([TITLES[model], f"{_training_ratio(results, model):.2f}", *seconds])
    return table(["model", "times the time in memory", "fed from Spark", "arrays in memory"], rows)


def _memory(results):
    rows = []
    for partitions, rounds in results["memory"]["found"]["stream"].items():
        size = results["memory"]["rows"]["stream"][0] * KINDS["floats"].row_bytes / 1e6 / int(partitions)
        for role in ("node", "python worker", "files in memory"):
            grown, start = ([each[role][number] / 1e6 for each in rounds] for number in (0, 1))
            growth = median_and_range(grown, "{:.0f}", " MB")
            rows.append([f"{partitions} of {size:.0f} MB", role, growth, f"{median(start):.0f} MB"])
    return table(["partitions", "memory of", "highest growth", "before"], rows)


def draw(results, path):
    """Draw throughput, later epochs and training, if the results have all of them."""
    if not {"throughput", "epochs", "training"} <= results.keys():
        return
    with plot(path, 2, figsize=(11, 5.2), width_ratios=[3, 2]) as (_, (left, right)):
        _draw_throughput(left, results)
        _draw_epochs(right, results)


def _draw_throughput(axes, results):
    for group, kind in enumerate(results["throughput"]["found"]):
        for place, feed in enumerate(_COLOURS):
            share = 100 * _ratio(results, kind, feed, "limit")
            y = group + (place - 2) * 0.17
            axes.barh(y, share, 0.15, color=_COLOURS[feed], label=_FEEDS[feed] if not group else None)
            axes.text(share + 1, y, f"{share:.0f} %" if share >= 10 else f"{share:.1f} %", va="center", fontsize=7)
    axes.axvline(100, color="black", linewidth=1)
    kinds = results["throughput"]["found"]
    axes.set(yticks=range(len(kinds)), yticklabels=[_wrapped(KINDS[kind].title) for kind in kinds])
    axes.set(xlim=(0, 118), xlabel="rows per second, in % of a Spark job that only counts the batches (line)")
    axes.invert_yaxis()
    axes.set_title("From Spark into the training function", loc="left", fontweight="bold")
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=5, frameon=False, fontsize=8)


def _draw_epochs(axes, results):
    ratios = {"no model:\na pass over the rows": _speed(results, "in memory") / _speed(results, "dataset")}
    for model, title in TITLES.items():
        ratios[_wrapped(title.replace(": ", ":\n"))] = _training_ratio(results, model)
    axes.barh(range(len(ratios)), ratios.values(), 0.5, color=_COLOURS["disk"])
    for y, ratio in enumerate(ratios.values()):
        axes.text(0.05, y, f"{ratio:.2f}", va="center", fontsize=9, color="white", fontweight="bold")
    axes.axvline(1, color="black", linewidth=1)
    axes.set(yticks=range(len(ratios)), yticklabels=list(ratios), xlim=(0, 1.1 * max(1, *ratios.values())))
    axes.set_xlabel("time of an epoch, relative to numpy arrays\nin memory (line): less is better")
    axes.invert_yaxis()
    axes.set_title("Later epochs, on one worker", loc="left", fontweight="bold")


def _wrapped(title):
    unbroken = title.replace("Dense ", "Dense\N{NO-BREAK SPACE}")
    return "\n".join(line for part in unbroken.split("\n") for line in textwrap.wrap(part, 24))
