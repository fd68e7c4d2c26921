"""The tables and the picture of the TFRecord benchmark."""

from statistics import median

from benchmarks.common.report import Target, median_and_range, plot, table, targets
from benchmarks.tfrecord.rows import KINDS

READERS = {
    "ours": '`spark.read.format("tfrecord")`',
    "limit": "Spark's own way from Arrow batches to its rows",
    "node": '`ctx.read_tfrecord(cache="memory")`, one core',
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
_METHODS = {"read": READERS, "write": WRITERS}
_CORES = {"alone": 1, "node": 1, "rows": 1, "batches": 1}  # the others have two
_COLOURS = {
    "ours": "#2171b5",
    "limit": "#9ecae1",
    "node": "#238b45",
    "dfutil": "#08306b",
    "spark-tfrecord": "#6baed6",
    "2.2.5": "#d94801",
    "alone": "#969696",
    "alone, both cores": "#bdbdbd",
    "rows": "#bdbdbd",
    "batches": "#969696",
}
_ALONE = {"read": "alone", "write": "batches"}
_RATIOS = {
    "2.2.5": "times 2.2.5",
    "limit": "of Spark's own way",
    "spark-tfrecord": "times spark-tfrecord",
    "per core": "of TensorFlow alone, per core",
}
_BOUNDS = {"read": {"2.2.5": 30, "per core": 0.7, "limit": 0.8}, "write": {"2.2.5": 15}}
_NODE_BOUND = 0.9  # of TensorFlow alone, per core
_DFUTIL_BOUND = 10  # times 2.2.5


def per_core(found, method):
    """Return the rows per second of a method on one core."""
    return median(found[method]) / _CORES.get(method, 2)


def compared(found, action, method):
    """Return the speed relative to 2.2.5, to Spark's own way, to spark-tfrecord, and per core to TensorFlow alone."""
    ratios = {
        each: median(found[method]) / median(found[each])
        for each in ("2.2.5", "limit", "spark-tfrecord")
        if each in found and (each != "limit" or _CORES.get(method, 2) == _CORES.get(each, 2))
    }
    return {**ratios, "per core": per_core(found, method) / per_core(found, _ALONE[action])}


def _targets():
    for action, bounds in _BOUNDS.items():
        for name, kind in KINDS.items():
            for other, bound in bounds.items():
                yield Target(
                    f"{action}, {kind.title}: {_RATIOS[other]}",
                    lambda results, action=action, name=name, other=other: compared(
                        results[f"{action} {name}"], action, "ours"
                    )[other],
                    bound,
                )
        if action == "read":
            for name, kind in KINDS.items():
                yield Target(
                    f"read by a node, {kind.title}: {_RATIOS['per core']}",
                    lambda results, name=name: compared(results[f"read {name}"], "read", "node")["per core"],
                    _NODE_BOUND,
                )
        yield Target(
            f"{action}: times spark-tfrecord, the slowest kind of row",
            lambda results, action=action: min(
                compared(results[f"{action} {name}"], action, "ours")["spark-tfrecord"] for name in KINDS
            ),
            1,
            optional=True,
        )
        yield Target(
            f"`dfutil`, {action}, {KINDS['narrow'].title}: times 2.2.5",
            lambda results, action=action: compared(results[f"{action} narrow"], action, "dfutil")["2.2.5"],
            _DFUTIL_BOUND,
        )


TARGETS = list(_targets())


def report(results):
    """Return the sections of the page."""
    measured = [(action, name) for action in _METHODS for name in KINDS if f"{action} {name}" in results]
    figures = [results["about"]]
    for action, name in measured:
        figures += [f"**{action.title()}, {KINDS[name].title}**", _one_kind(results[f"{action} {name}"], action)]
    return {**targets(TARGETS, results), "figures": "\n\n".join(figures)}


def _one_kind(found, action):
    rows = []
    for method, title in _METHODS[action].items():
        if method in found:
            ratios = compared(found, action, method)
            shown = [_shown(ratios[each]) if each in ratios else "not run" for each in _RATIOS]
            rows.append([title, *shown, median_and_range(found[method], "{:,.0f}", "/s")])
    return table(["method", *_RATIOS.values(), "rows"], rows)


def _shown(ratio):
    return f"{ratio:,.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def draw(results, path):
    """Draw the rows per second and core of all methods, if the results have all kinds of rows."""
    if not all(f"{action} {name}" in results for action in _METHODS for name in KINDS):
        return
    with plot(path, 2, figsize=(11, 6.2), sharey=True) as (figure, panels):
        for axes, action in zip(panels, _METHODS, strict=True):
            _draw_panel(axes, results, action)
        figure.supxlabel("thousand rows per second and core (a logarithmic scale)", fontsize=9)


def _draw_panel(axes, results, action):
    methods = _METHODS[action]
    for group, name in enumerate(KINDS):
        found = results[f"{action} {name}"]
        for place, method in enumerate(method for method in methods if method in found):
            rate, y = per_core(found, method) / 1000, group + (place - 2.5) * 0.16
            label = methods[method].replace("`", "") if not group else None
            axes.barh(y, rate, 0.14, color=_COLOURS[method], label=label)
            shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
            axes.annotate(shown, (rate, y), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set(xscale="log", yticks=range(len(KINDS)), yticklabels=[kind.title for kind in KINDS.values()])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.12)
    axes.set_ylim(len(KINDS) - 0.5, -0.5)
    axes.set_title(action.title(), loc="left", fontweight="bold")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.06), frameon=False, fontsize=8)
