"""The report of the comparison of trainers."""

from statistics import median

from benchmarks.common.report import Target, median_and_range, table, targets
from benchmarks.peers.passes import WIDTH
from benchmarks.trainers.training import BATCH, CLASSES, EPOCHS, LAYERS, STAGES, size_of

TITLES = {
    "ours": "ours: Keras 3, `MultiWorkerMirroredStrategy`",
    "jax": "ours: Keras 3 on JAX",
    "tf_keras": "ours: `tf_keras`, `MultiWorkerMirroredStrategy`",
    "hand": "by hand: Parquet, `TF_CONFIG`, `tf_keras`, `MultiWorkerMirroredStrategy`",
    "ray": "Ray Train: Parquet, `TensorflowTrainer`, `tf_keras`",
}
_SHOWN_STAGES = (
    "writing files",
    "until both programs run",
    "import",
    "strategy and model",
    "rows as a dataset",
    "until `fit` begins",
    "first step",
)
_OTHERS = {"hand": "two processes by hand", "ray": "Ray Train"}


def rate(results, model, each):
    """Return the rows per second of a later epoch."""
    return results[model]["steps"] * BATCH / each["epoch"]


def _median(results, model, name, of):
    return median(of(each) for each in results[model]["found"][name])


def _beside(results, model, name, of):
    """Return our figure, as a part of another contender's."""
    return _median(results, model, "ours", of) / _median(results, model, name, of)


def _speeds(results, name):
    return [_beside(results, model, name, lambda each, model=model: rate(results, model, each)) for model in LAYERS]


def _firsts(results, name):
    return [_beside(results, model, name, lambda each: each["first"]) for model in LAYERS]


TARGETS = [
    target
    for name, title in _OTHERS.items()
    for target in (
        Target(
            f"rows/s of a later epoch, beside {title}, the worst of three models",
            lambda results, name=name: min(_speeds(results, name)),
            1.0,
            optional=name == "ray",
        ),
        Target(
            f"from the DataFrame to the end of the first step, beside {title}, the worst of three models",
            lambda results, name=name: max(_firsts(results, name)),
            1.0,
            at_least=False,
            optional=name == "ray",
        ),
    )
]


def _of_ours(results, model, name):
    """Return a contender's rows per second and its time to the first step, as parts of ours."""
    if "ours" not in results[model]["found"]:
        return ["", ""]
    figures = (lambda each: rate(results, model, each), lambda each: each["first"])
    return [f"{1 / _beside(results, model, name, of):.2f}" for of in figures]


def _whole(results, model):
    """Return the section of a model."""
    found = results[model]["found"]
    rows = []
    for name in [name for name in TITLES if name in found]:
        speeds = [rate(results, model, each) for each in found[name]]
        losses = sorted({f"{each['loss']:.3f}" for each in found[name]})
        rows.append(
            [
                TITLES[name],
                *_of_ours(results, model, name),
                median_and_range(speeds, "{:,.0f}", ""),
                *(median_and_range([each[what] for each in found[name]], "{:.1f}") for what in ("first", "whole")),
                f"{max(each['memory'] for each in found[name]) / 1e6:,.0f} MB",
                losses[0] if len(losses) == 1 else f"{losses[0]} to {losses[-1]}",
            ]
        )
    rows += [[TITLES[name], f"not run: {why}", *[""] * 6] for name, why in results[model]["not run"].items()]
    steps = results[model]["steps"]
    layers = " → ".join(f"{width:,}" for width in (WIDTH, *LAYERS[model], CLASSES))
    text = (
        f"{results[model]['about']} {layers}: {size_of(model):,} weights; {steps * BATCH:,} rows, "
        f"{EPOCHS} epochs of {steps} steps of {BATCH} rows over both workers."
    )
    ratios = ["rows/s, of ours", "first step, of ours"]
    seconds = ["to the end of the first step", "whole call"]
    head = ["", *ratios, "rows/s of a later epoch", *seconds, "most memory of a worker", "loss of the last epoch"]
    return f"{text}\n\n{table(head, rows)}"


def _stages(results):
    """Return the section of the stages up to the first step."""
    rows = []
    for model in [model for model in LAYERS if model in results]:
        for name in [name for name in TITLES if name in results[model]["found"]]:
            before = [_median(results, model, name, lambda each, at=at: each[at]) for at in ("write", "start")]
            stages = [_median(results, model, name, lambda each, at=at: each["stages"][at]) for at in STAGES]
            rows.append([model, TITLES[name], *(f"{each:.1f} s" for each in (*before, *stages))])
    return table(["model", "", *_SHOWN_STAGES], rows)


def report(results):
    """Return the sections of the page."""
    sections = {model: _whole(results, model) for model in LAYERS if model in results}
    return {**targets(TARGETS, results), **sections, "stages": _stages(results)}
