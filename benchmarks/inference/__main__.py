"""A model over the rows of a DataFrame: rows per second, and the seconds of a training from start to end.

The DataFrames are in Spark's memory, on a standalone cluster of two one-core workers. Our stage, with both engines, and
the one with the names of 2.x stand beside a Spark job that only counts the same batches, which is the limit of a Spark
task; Spark's own ``predict_batch_udf``; TensorFlowOnSpark 2.2.5 from PyPI; and TensorFlow alone on arrays in the memory
of one process with both cores. The part ``fit`` sets ``KerasEstimator.fit``, with start-up and shutdown of its cluster,
beside two processes started by hand. The part ``many`` is a small network over very many rows, with and without
progress, and ``memory`` the memory of an executor whose Python workers apply a large model.
"""

from contextlib import ExitStack
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, percent, plot, table, targets
from benchmarks.common.rounds import Contender, python_of_2x, take_turns
from benchmarks.inference.rows import KINDS

_METHODS = {
    "limit": "`mapInArrow` that only counts: the limit",
    "ours": "`KerasModel.transform`",
    "onnx": '`KerasModel.transform`, `engine="onnx"`',
    "as in 2.x": "`TFModel.transform`, the program of 2.x",
    "predict_batch_udf": "`predict_batch_udf`",
    "2.2.5": "TensorFlowOnSpark 2.2.5, `TFModel.transform`",
    "alone": "TensorFlow alone, arrays in memory",
}
_COLOURS = {
    "ours": "#2171b5", "onnx": "#08519c",
    "as in 2.x": "#4292c6", "predict_batch_udf": "#6baed6", "2.2.5": "#d94801", "alone": "#969696",
}  # fmt: skip
_LABELS = {
    "ours": "KerasModel.transform", "onnx": "with engine=\"onnx\"",
    "as in 2.x": "TFModel.transform", "predict_batch_udf": "predict_batch_udf",
    "2.2.5": "TFModel of 2.2.5", "alone": "TensorFlow alone",
}  # fmt: skip
_FIT_ROWS, _FIT_EPOCHS = 120_000, 3
_MANY_ROWS = 100_000_000
_MANY = {  # the engine, and whether the rows are counted
    "`transform`": ("keras", False),
    "the same in `stage.progress()`": ("keras", True),
    '`engine="onnx"`': ("onnx", False),
    '`engine="onnx"` in `stage.progress()`': ("onnx", True),
}
_BIG, _QUARTER, _NONE = 1024, 256, 0.01  # megabytes of weights
_MODELS = {  # by name, how the workers load a model, its megabytes, and its title
    "none": ("shared", _NONE, "a model of 10 KB"),
    "quarter": ("shared", _QUARTER, "256 MB, shared"),
    "quarter, private": ("private", _QUARTER, "256 MB, loaded by each worker alone"),
    "whole": ("shared", _BIG, "1 GB, shared"),
}


def _ratio(method, other):
    return lambda results: median(results["small"]["found"][method]) / median(results["small"]["found"][other])


def _added(results):
    found = {name: median(each["workers"] for each in rounds) for name, rounds in results["memory"]["found"].items()}
    return (found["whole"] - found["none"]) / 1e9


TARGETS = [
    Target("small network: times 2.2.5", _ratio("ours", "2.2.5"), 15, "{:.0f}"),
    Target("small network: times `predict_batch_udf`", _ratio("ours", "predict_batch_udf"), 5, "{:.0f}"),
    Target("small network: part of the limit", _ratio("ours", "limit"), 0.85),
    Target("small network: `TFModel.transform`, times 2.2.5", _ratio("as in 2.x", "2.2.5"), 15, "{:.0f}"),
    Target("a model of 1 GB: more memory of four Python workers", _added, 1.4, "{:.2f} GB", False, optional=True),
]


def measure(options, log):
    """Run the parts that the command line names."""
    for part in options.parts.split(","):
        if part == "memory":
            yield {part: {"about": circumstances(options, warm_up=False), "found": _memory(options, log)}}
            continue
        if part == "many":
            yield {part: _many(options, log)}
            continue
        with ExitStack() as stack:
            turns = _fit(options, stack, log) if part == "fit" else _inference(KINDS[part], part, options, stack, log)
            found = take_turns(turns, options.rounds, part, shown="{:,.2f}".format)
            rows = _scaled(_FIT_ROWS if part == "fit" else KINDS[part].rows, options)
            yield {part: {"about": circumstances(options), "rows": rows, "found": found}}


def _inference(kind, name, options, stack, log):
    contenders = "benchmarks.inference.contenders"
    present = stack.enter_context(Contender(["-m", contenders, "present"], log))
    old = stack.enter_context(Contender(["-m", contenders, "2x"], log, python_of_2x(options)))
    turns = {}
    for method in _METHODS:
        if (name, method) == ("text", "onnx"):
            continue  # ONNX Runtime takes no texts
        taken = {"predict_batch_udf": kind.slow_rows, "2.2.5": kind.old_rows}.get(method, kind.rows)
        request = {"kind": name, "rows": _scaled(kind.rows, options), "taken": _scaled(taken, options)}
        turns[method] = (old if method == "2.2.5" else present).turn(method=method, **request)
    return turns


def _fit(options, stack, log):
    contender = stack.enter_context(Contender(["-m", "benchmarks.inference.fit"], log))
    request = {"rows": _scaled(_FIT_ROWS, options), "epochs": _FIT_EPOCHS}
    return {method: contender.turn(method=method, **request) for method in ("estimator", "by hand")}


def _many(options, log):
    rows = _scaled(_MANY_ROWS, options)
    with ExitStack() as stack:
        contender = stack.enter_context(Contender(["-m", "benchmarks.inference.many"], log))
        turns = {
            name: contender.turn(rows=rows, engine=engine, progress=progress)
            for name, (engine, progress) in _MANY.items()
        }
        found = take_turns(turns, options.rounds, "many", warm_up=False, shown="{:,.0f}".format)
    return {"about": circumstances(options, warm_up=False), "rows": rows, "found": found}


def _memory(options, log):
    with ExitStack() as stack:
        contenders = {
            way: stack.enter_context(Contender(["-m", "benchmarks.inference.memory", way], log))
            for way in ("shared", "private")
        }
        turns = {name: contenders[way].turn(megabytes=size) for name, (way, size, _) in _MODELS.items()}
        return take_turns(turns, options.rounds, "memory", warm_up=False)


def _scaled(rows, options):
    return max(1_000, int(rows * options.scale))


def report(results):
    """Return the sections of the page."""
    sections = targets(TARGETS, results)
    for name, kind in KINDS.items():
        if name in results:
            head = f"**{kind.title}**: {results[name]['rows']:,} rows"
            sections[name] = f"{results[name]['about']}\n\n{head}\n\n{_one_kind(results[name]['found'])}"
    if "fit" in results:
        sections["fit"] = f"{results['fit']['about']}\n\n{_training(results['fit']['found'])}"
    if "many" in results:
        rows = results["many"]["rows"]
        sections["many"] = f"{results['many']['about']}\n\n{rows:,} rows\n\n{_of_many(results['many']['found'])}"
    if "memory" in results:
        sections["memory"] = f"{results['memory']['about']}\n\n{_executors(results['memory']['found'])}"
    return sections


def _of_many(rates):
    first = median(rates["`transform`"])
    rows = [
        [name, f"{median(found) / first:.2f}", median_and_range(found, "{:,.0f}", "/s")]
        for name, found in rates.items()
    ]
    return table(["", "times the first", "rows"], rows)


def _executors(found):
    rows = [
        [
            title,
            *(median_and_range([each[part] / 1e9 for each in found[name]], unit=" GB") for part in ("workers", "jvm")),
            *(median_and_range([each["seconds"][job] for each in found[name]], "{:.0f}") for job in (0, 1)),
        ]
        for name, (_, _, title) in _MODELS.items()
    ]
    return table(["weights", "peak of four Python workers", "peak of the JVM", "first job", "second job"], rows)


def _one_kind(rates):
    best, old, alone = (median(rates[method]) for method in ("limit", "2.2.5", "alone"))
    both = 1 / (1 / best + 1 / alone)  # Spark's part and the network's own arithmetic, one after the other
    rows = [
        [
            title,
            percent(median(rates[method]) / best),
            percent(median(rates[method]) / both),
            f"{median(rates[method]) / old:,.1f}",
            median_and_range(rates[method], "{:,.0f}", "/s"),
        ]
        for method, title in _METHODS.items()
        if method in rates
    ]
    return table(["method", "of the limit", "of limit and network", "times 2.2.5", "rows"], rows)


def _training(seconds):
    ratio = median(seconds["estimator"]) / median(seconds["by hand"])
    rows = [
        ["`KerasEstimator.fit` on a DataFrame", f"{ratio:.2f}", median_and_range(seconds["estimator"])],
        ["by hand, `TF_CONFIG`, arrays in memory", "1", median_and_range(seconds["by hand"])],
    ]
    return table(["training, from start to end", "times the one by hand", "seconds"], rows)


def draw(results, path):
    """Draw the rows per second of all methods, if the results have all kinds of rows."""
    if not KINDS.keys() <= results.keys():
        return
    with plot(path, len(KINDS), figsize=(11, 3.2)) as (figure, panels):
        for axes, (name, kind) in zip(panels, KINDS.items(), strict=True):
            _draw_kind(axes, results[name]["found"])
            axes.set_title(kind.title.replace(", ", ",\n", 1), loc="left", fontweight="bold", fontsize=9)
        panels[0].set(yticklabels=[_LABELS[method] for method in _COLOURS])
        figure.suptitle(
            "A model over a DataFrame's rows (line: a Spark job that only counts them)", x=0.01, ha="left", fontsize=10
        )


def _draw_kind(axes, rates):
    limit = median(rates["limit"])
    for place, (method, colour) in enumerate(_COLOURS.items()):
        if method not in rates:
            continue
        rate = median(rates[method])
        axes.barh(place, rate / 1000, 0.6, color=colour)
        shown = f"{rate / 1000:,.0f}" if rate >= 100_000 else f"{rate / 1000:.1f}"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # keeps the line off the number
        axes.annotate(
            shown, (rate / 1000, place), (4, 0), textcoords="offset points", va="center", fontsize=8, bbox=box
        )
    axes.axvline(limit / 1000, color="black", linewidth=1)
    most = max(limit, *(median(rates[method]) for method in _COLOURS if method in rates)) / 1000
    axes.set(xlim=(0, 1.22 * most), xlabel="thousand rows per second", yticks=range(len(_COLOURS)), yticklabels=[])
    axes.invert_yaxis()


if __name__ == "__main__":
    run(
        command("inference", __doc__, parts=(*KINDS, "fit", "many", "memory"), scaled=True, beside_2x=True),
        measure,
        report,
        draw,
    )
