"""The tables of recovery.py, as Markdown, and its picture."""

from pathlib import Path
from statistics import median

from rounds import median_and_range, table

PAGE = Path(__file__).parent.parent / "docs/benchmarks/recovery.md"

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


def report(results):
    """Return all tables."""
    modes = results["modes"]
    return "\n\n".join([f"{results['about']}, and the range.", _totals(modes), _parts(modes)])


def _totals(modes):
    rows = []
    for mode, found in modes.items():
        again, fresh = ([each["all"] for each in found[what]] for what in ("recovery", "fresh"))
        above = [one - other for one, other in zip(again, fresh, strict=True)]
        noticed = [each["noticed"] for each in found["notice"]]
        rows.append([_MODES[mode], median_and_range(noticed), *map(median_and_range, (again, fresh, above))])
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
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    bars = [(mode, what) for mode in results["modes"] for what in _BARS]
    figure, axes = plt.subplots(figsize=(10, 1.6 + 0.55 * len(bars)), layout="constrained")
    for y, (mode, what) in enumerate(bars):
        _draw_bar(axes, y, results["modes"][mode][what])
    titles = [f"{_MODES[mode]}:\n{_BARS[what]}" for mode, what in bars]
    axes.set(yticks=range(len(bars)), yticklabels=titles, xlabel="seconds (medians of the parts)")
    axes.invert_yaxis()
    axes.set_title("A node is killed: what passes until training goes on", loc="left", fontweight="bold")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for _, colour in _PARTS.values()]
    titles = [title for title, _ in _PARTS.values()]
    figure.legend(handles, titles, loc="outside lower left", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_bar(axes, y, rounds):
    left = 0.0
    all_parts = median([each["all"] for each in rounds])
    for part, (_, colour) in _PARTS.items():
        if part in rounds[0]:
            width = median([each[part] for each in rounds])
            axes.barh(y, width, 0.6, left=left, color=colour)
            if width > 0.03 * all_parts:  # there is room for a number
                axes.text(left + width / 2, y, f"{width:.1f}", ha="center", va="center", fontsize=7.5, color="white")
            left += width
    axes.text(left + 0.05, y, f"{left:.1f} s", va="center", fontsize=9, fontweight="bold")
