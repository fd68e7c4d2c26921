"""The tables of tfrecord.py, as Markdown, and its picture."""

from pathlib import Path
from statistics import median

from rounds import median_and_range, table
from tfrecord_rows import KINDS

DOCUMENT = Path(__file__).parent.parent / "docs/benchmarks/tfrecord.md"
_BEGIN, _END = "<!-- figures -->", "<!-- end of figures -->"

READERS = {
    "ours": '`spark.read.format("tfrecord")`',
    "dfutil": "our `dfutil.loadTFRecords`",
    "spark-tfrecord": "spark-tfrecord",
    "2.2.5": "TensorFlowOnSpark 2.2.5, `loadTFRecords`",
    "alone": "TensorFlow alone, one core",
    "alone, both cores": "TensorFlow alone, both cores",
}
WRITERS = {
    "ours": '`df.write.format("tfrecord")`',
    "dfutil": "our `dfutil.saveAsTFRecords`",
    "spark-tfrecord": "spark-tfrecord",
    "2.2.5": "TensorFlowOnSpark 2.2.5, `saveAsTFRecords`",
    "rows": "TensorFlow alone, one core, row by row",
    "batches": "TensorFlow alone, one core, `encode_proto`, batches",
}
_CORES = {"alone": 1, "rows": 1, "batches": 1}  # the others have two
_COLOURS = {
    "ours": "#2171b5",
    "dfutil": "#08306b",
    "spark-tfrecord": "#6baed6",
    "2.2.5": "#d94801",
    "alone": "#969696",
    "alone, both cores": "#bdbdbd",
    "rows": "#bdbdbd",
    "batches": "#969696",
}
_ALONE = {"read": "alone", "write": "batches"}
_TARGETS = {"read": {"2.2.5": 30, "spark-tfrecord": 1, "per core": 0.7}, "write": {"2.2.5": 15, "spark-tfrecord": 1}}
_DFUTIL_TARGET = 10  # times 2.2.5


def per_core(found, road):
    """Return a road's rows per second on one core."""
    return median(found[road]) / _CORES.get(road, 2)


def compared(found, action, road):
    """Return a road's speed relative to 2.2.5, to spark-tfrecord if it was run, and per core to TensorFlow alone."""
    ratios = {each: median(found[road]) / median(found[each]) for each in ("2.2.5", "spark-tfrecord") if each in found}
    return {**ratios, "per core": per_core(found, road) / per_core(found, _ALONE[action])}


def report(results):
    """Return all tables that there are results for."""
    parts = {"read": READERS, "write": WRITERS}
    there = [(action, name) for action in parts for name in KINDS if f"{action} {name}" in results]
    told = [f"{results['about']}.", _targets(results, there)]
    for action, name in there:
        told += [
            f"**{action.title()}, {KINDS[name].title}**",
            _one_kind(results[f"{action} {name}"], action, parts[action]),
        ]
    return "\n\n".join(told)


def _one_kind(found, action, roads):
    rows = []
    for road in (road for road in roads if road in found):
        ratios = compared(found, action, road)
        shown = [_shown(ratios[each]) if each in ratios else "not run" for each in _TARGETS["read"]]
        rows.append([roads[road], *shown, median_and_range(found[road], "{:,.0f}", "/s")])
    return table(["road", "times 2.2.5", "times spark-tfrecord", "of TensorFlow alone, per core", "rows"], rows)


def _targets(results, there):
    rows = []
    for action, name in there:
        found = results[f"{action} {name}"]
        ratios = compared(found, action, "ours")
        judged = [_judged(ratios.get(each), _TARGETS[action].get(each)) for each in _TARGETS["read"]]
        by_old_names = compared(found, action, "dfutil") if "dfutil" in found else {}
        judged.append(_judged(by_old_names.get("2.2.5"), _DFUTIL_TARGET))
        rows.append([f"{action}: {KINDS[name].title}", *judged])
    heads = ["ours", "times 2.2.5", "times spark-tfrecord", "of TensorFlow alone, per core", "dfutil: times 2.2.5"]
    return table(heads, rows)


def _judged(ratio, target):
    if ratio is None:
        return "not run"
    if target is None:
        return _shown(ratio)
    return f"{_shown(ratio)} (target {target}{'' if ratio >= target else ': **missed**'})"


def _shown(ratio):
    return f"{ratio:,.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def publish(tables, document):
    """Put the tables into a document, between its two marks."""
    text = document.read_text() if document.exists() else f"{_BEGIN}\n{_END}\n"
    before, rest = text.split(_BEGIN)
    document.write_text(f"{before}{_BEGIN}\n{tables}\n{_END}{rest.split(_END)[1]}")


def draw(results, path):
    """Draw the rows per second and core of all roads."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(1, 2, figsize=(11, 6.2), sharey=True, layout="constrained")
    for axes, action, roads in zip(panels, ("read", "write"), (READERS, WRITERS), strict=True):
        _draw_panel(axes, results, action, roads)
    figure.supxlabel("thousand rows per second and core (a logarithmic scale)", fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_panel(axes, results, action, roads):
    for group, name in enumerate(KINDS):
        found = results[f"{action} {name}"]
        for place, road in enumerate(road for road in roads if road in found):
            rate, y = per_core(found, road) / 1000, group + (place - 2.5) * 0.16
            axes.barh(y, rate, 0.14, color=_COLOURS[road], label=roads[road].replace("`", "") if not group else None)
            shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
            axes.annotate(shown, (rate, y), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set(xscale="log", yticks=range(len(KINDS)), yticklabels=[kind.title for kind in KINDS.values()])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.12)
    axes.set_ylim(len(KINDS) - 0.5, -0.5)
    axes.set_title(action.title(), loc="left", fontweight="bold")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.06), frameon=False, fontsize=8)
