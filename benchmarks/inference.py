"""A model over the rows of a DataFrame: how many per second, and what a training costs from begin to end.

The DataFrames are in Spark's memory, on a standalone cluster of two one-core workers. Ours, the new stage and the one
with the names of 2.x, stand beside a Spark job that only counts the same batches, which nothing in a Spark task can
beat; Spark's own ``predict_batch_udf``; TensorFlowOnSpark 2.2.5 from PyPI; and TensorFlow alone on arrays in the memory
of one process with both cores. The last part sets ``KerasEstimator.fit``, its cluster's begin and end included, beside
two processes started by hand.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median

from inference_rows import KINDS
from lifecycle import old_python
from rounds import Contender, circumstances, environment, median_and_range, results_of, share, table

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
_PICTURE = _ROOT / "docs/benchmarks/inference.png"
_ROADS = {
    "limit": "`mapInArrow` that only counts: the limit",
    "ours": "`KerasModel.transform`",
    "as in 2.x": "`TFModel.transform`, the program of 2.x",
    "predict_batch_udf": "`predict_batch_udf`",
    "2.2.5": "TensorFlowOnSpark 2.2.5, `TFModel.transform`",
    "alone": "TensorFlow alone, arrays in memory",
}
_COLOURS = {
    "ours": "#2171b5", "as in 2.x": "#4292c6", "predict_batch_udf": "#6baed6", "2.2.5": "#d94801", "alone": "#969696",
}  # fmt: skip
_FIT_ROWS, _FIT_EPOCHS = 120_000, 3


def taken(kind, road):
    """Return how many rows a round has."""
    return {"predict_batch_udf": kind.slow_rows, "2.2.5": kind.old_rows}.get(road, kind.rows)


def measure(options, results, log):
    """Let all take turns, and keep what they say."""
    old = old_python(options.old_python, options.old_venv)
    pythons = {"inference_2x.py": old, "inference_ours.py": sys.executable, "inference_fit.py": sys.executable}
    contenders = {
        name: Contender([python, str(_HERE / name)], environment(python), log) for name, python in pythons.items()
    }
    turns = {}
    for name, kind in KINDS.items():
        for road in _ROADS:
            order = {"kind": name, "road": road, "rows": kind.rows, "taken": taken(kind, road)}
            script = "inference_2x.py" if road == "2.2.5" else "inference_ours.py"
            turns[name, road] = (script, order)
    for road in ("estimator", "by hand"):
        turns["fit", road] = ("inference_fit.py", {"road": road, "rows": _FIT_ROWS, "epochs": _FIT_EPOCHS})
    for part in (part for part in (*KINDS, "fit") if part in options.parts.split(",")):
        found = {}
        for number in range(options.rounds + 1):
            for (own, road), (script, order) in turns.items():
                if own == part:
                    answer = contenders[script].round(json.dumps(order))
                    print(f"round {number}: {part} {road}: {answer:,.2f}", file=sys.stderr, flush=True)
                    if number:  # the first warms up
                        found.setdefault(road, []).append(answer)
        results |= {part: found, "about": circumstances(options.rounds)}
        options.results.write_text(json.dumps(results, indent=1))
    for contender in contenders.values():
        contender.close()


def report(results):
    """Return the tables."""
    told = [results["about"]]
    for name, kind in KINDS.items():
        if name in results:
            told += [f"**{kind.title}**: {kind.rows:,} rows", _one_kind(results[name])]
    if "fit" in results:
        times = results["fit"]
        ratio = median(times["estimator"]) / median(times["by hand"])
        told.append(
            table(
                ["training, from begin to end", "times the one by hand", "seconds"],
                [
                    ["`KerasEstimator.fit` on a DataFrame", f"{ratio:.2f}", median_and_range(times["estimator"])],
                    ["by hand, `TF_CONFIG`, arrays in memory", "1", median_and_range(times["by hand"])],
                ],
            )
        )
    return "\n\n".join(told)


def _one_kind(rates):
    best, old, alone = (median(rates[road]) for road in ("limit", "2.2.5", "alone"))
    both = 1 / (1 / best + 1 / alone)  # Spark's part, and then the network's own arithmetic, on the same cores
    rows = [
        [
            title,
            share(median(rates[road]) / best),
            share(median(rates[road]) / both),
            f"{median(rates[road]) / old:,.1f}",
            median_and_range(rates[road], "{:,.0f}", "/s"),
        ]
        for road, title in _ROADS.items()
        if road in rates
    ]
    return table(["road", "of the limit", "of limit and network", "times 2.2.5", "rows"], rows)


def draw(results, path):
    """Draw the rows per second of all roads, if all kinds are there with all roads."""
    if not all(_COLOURS.keys() <= results.get(name, {}).keys() for name in KINDS):
        return
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(1, len(KINDS), figsize=(11, 3.2), layout="constrained")
    for axes, (name, kind) in zip(panels, KINDS.items(), strict=True):
        limit = median(results[name]["limit"])
        for place, road in enumerate(_COLOURS):
            rate = median(results[name][road])
            axes.barh(place, rate / 1000, 0.6, color=_COLOURS[road])
            shown = f"{rate / 1000:,.0f}" if rate >= 100_000 else f"{rate / 1000:.1f}"
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # not through the line
            axes.annotate(
                shown, (rate / 1000, place), (4, 0), textcoords="offset points", va="center", fontsize=8, bbox=box
            )
        axes.axvline(limit / 1000, color="black", linewidth=1)
        most = max(limit, *(median(results[name][road]) for road in _COLOURS)) / 1000
        axes.set(xlim=(0, 1.22 * most), xlabel="thousand rows per second")
        axes.set(yticks=range(len(_COLOURS)))
        labels = [
            "KerasModel.transform", "TFModel.transform", "predict_batch_udf", "TFModel of 2.2.5", "TensorFlow alone",
        ]  # fmt: skip
        axes.set(yticklabels=labels if axes is panels[0] else [])
        axes.invert_yaxis()
        axes.set_title(kind.title.replace(", ", ",\n", 1), loc="left", fontweight="bold", fontsize=9)
    figure.suptitle(
        "A model over a DataFrame's rows (line: a Spark job that only counts them)", x=0.01, ha="left", fontsize=10
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main():
    """Run the rounds, print the tables, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="small,image,text,fit", help="which to run")
    parser.add_argument("--old-python", default=sys.executable, help="3.8 to 3.11, for TensorFlow 2.15")
    parser.add_argument("--old-venv", type=Path, default=Path(".venvs/2.2.5"))
    parser.add_argument("--results", type=Path, default=_ROOT / "build/benchmark-inference.json")
    parser.add_argument("--report-only", action="store_true", help="of the results that are there")
    options = parser.parse_args()
    results = results_of(options, measure)
    print(report(results))
    draw(results, _PICTURE)


if __name__ == "__main__":
    main()
