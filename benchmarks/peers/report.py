"""The report of the comparison with other ways from Spark into two processes."""

from statistics import median

from benchmarks.common.report import Target, median_and_range, plot, table, targets
from benchmarks.peers.passes import BYTES_PER_ROW

TITLES = {
    "all_rows": "ours",
    "first_rows": 'ours, `start="first_rows"`',
    "pyarrow, read anew": "Parquet, pyarrow by hand",
    "pyarrow, kept": "Parquet, pyarrow by hand, rows kept in memory",
    "ray, read anew": "Parquet, Ray Data",
    "ray, kept": "Parquet, Ray Data, `materialize()`",
    "streaming, in the process": "MDS, mosaicml-streaming",
    "streaming, a loader process": "MDS, mosaicml-streaming, `num_workers=1`",
}
_PARTS = {"ours": "ours", "pyarrow": "pyarrow by hand", "ray": "Ray Data", "streaming": "mosaicml-streaming"}
_STAGES = {
    "write": ("writing files", "#b0b0b0"),
    "start": ("start of the processes", "#d9a441"),
    "first": ("to the first batch", "#4878a8"),
    "epoch": ("rest of the first epoch", "#6aa56a"),
    "later": ("two later epochs", "#a05050"),
}


def total(spans):
    """Return the seconds of all stages of a round."""
    return spans["write"] + spans["start"] + spans["first"] + sum(spans["epochs"])


def _to_first(spans):
    return spans["write"] + spans["start"] + spans["first"]


def _without_start(spans):
    return total(spans) - spans["start"]


def _later(spans):
    return median(spans["epochs"][1:])


def _median(results, name, of):
    return median(of(each) for each in results["rounds"][name])


def _of_fastest(results, of):
    """Return our figure, as a part of the least of all other contenders that begin with files."""
    others = [name for name in results["rounds"] if name not in ("all_rows", "first_rows")]
    if not {"ray, read anew", "streaming, in the process"} <= set(others):
        raise KeyError("a peer")
    return _median(results, "all_rows", of) / min(_median(results, name, of) for name in others)


TARGETS = [
    Target(
        "from the DataFrame to the end of three epochs, of the fastest other's time",
        lambda results: _of_fastest(results, total),
        1.0,
        at_least=False,
    ),
    Target(
        "from the DataFrame to the first batch, of the fastest other's time",
        lambda results: _of_fastest(results, _to_first),
        1.0,
        at_least=False,
    ),
    Target(
        "a later epoch, of the fastest other's time",
        lambda results: _of_fastest(results, _later),
        1.0,
        at_least=False,
    ),
]


def report(results):
    """Return the sections of the page."""
    rounds = results["rounds"]
    names = [name for name in TITLES if name in rounds]
    unit = _median(results, "all_rows", total) if "all_rows" in rounds else None
    whole, stages = [], []
    for name in names:
        found = rounds[name]
        shown = [median_and_range([of(each) for each in found]) for of in (total, _without_start, _to_first)]
        ratio = f"{_median(results, name, total) / unit:.2f}" if unit else ""
        whole.append([TITLES[name], ratio, *shown, f"{_median(results, name, _later):.2f} s"])
        seconds = [median(_stage(each, stage) for each in found) for stage in _STAGES]
        memory = f"{max(each['memory'] for each in found) / 1e6:.0f} MB"
        files = f"{found[0]['bytes'] / 1e6:.0f} MB" if "bytes" in found[0] else ""
        stages.append([TITLES[name], *(f"{each:.2f} s" for each in seconds), memory, files])
    for part, reason in results["not run"].items():
        whole.append([_PARTS[part], f"not run: {reason}", "", "", "", ""])
    head = ["", "times ours", "three epochs in all", "without the start", "to the first batch", "a later epoch"]
    further = ["most memory of a process", "files"]
    text = f"{results['about']} {results['rows']:,} rows, {results['rows'] * BYTES_PER_ROW / 1e6:.0f} MB."
    return {
        **targets(TARGETS, results),
        "whole": f"{text}\n\n{table(head, whole)}",
        "stages": table(["", *(title for title, _ in _STAGES.values()), *further], stages),
    }


def _stage(spans, stage):
    if stage == "epoch":
        return spans["epochs"][0]
    return sum(spans["epochs"][1:]) if stage == "later" else spans[stage]


def draw(results, path):
    """Draw the stages of each contender."""
    names = [name for name in TITLES if name in results["rounds"]]
    with plot(path, figsize=(9, 0.5 * len(names) + 1.4)) as (_, axes):
        begins = [0.0] * len(names)
        for stage, (title, colour) in _STAGES.items():
            seconds = [median(_stage(each, stage) for each in results["rounds"][name]) for name in names]
            axes.barh(range(len(names)), seconds, 0.6, left=begins, color=colour, label=title)
            begins = [begin + each for begin, each in zip(begins, seconds, strict=True)]
        for place, end in enumerate(begins):
            axes.text(end + 0.2, place, f"{end:.1f} s", va="center", fontsize=8)
        axes.set(yticks=range(len(names)), yticklabels=[TITLES[name].replace("`", "") for name in names])
        axes.set_xlabel("seconds from a DataFrame in Spark's memory")
        axes.invert_yaxis()
        axes.figure.legend(
            *axes.get_legend_handles_labels(), loc="outside lower left", ncols=5, frameon=False, fontsize=8
        )
