"""The cost of measuring a training: the seconds of a step with all metrics and without any.

Both are epochs of ``fit`` under ``MultiWorkerMirroredStrategy`` in the same two processes, which take turns. A round is
an epoch of each. The work that measuring adds is also timed alone, where no exchange between processes hides it.
"""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import Contender, take_turns

_MODELS = {
    "small: 64 → 32 → 10, batches of 64": {"width": 32, "depth": 1, "batch": 64, "rows": 12_800},
    "larger: 64 → 512 (four times) → 10, batches of 512": {"width": 512, "depth": 4, "batch": 512, "rows": 25_600},
}


def _added(results):
    """Return the seconds that measuring adds to a step."""
    return median(sum(each.values()) for each in results["alone"])


def _share(results, name):
    return 100 * _added(results) / median(results["models"][name]["off"])


TARGETS = [
    Target(
        f"what measuring adds to a step; {name}",
        lambda results, name=name: _share(results, name),
        1.0,
        "{:.1f} % of it",
        at_least=False,
    )
    for name in _MODELS
]


def measure(options, log):
    """Time the added work alone, and train both models on one cluster each."""
    with Contender(["-m", "benchmarks.metrics.alone"], log) as alone:
        yield {"alone": take_turns({"": alone.turn()}, options.rounds, "alone")[""]}
    with Contender(["-m", "benchmarks.metrics.contenders"], log) as ours:
        found = {name: ours.round({**settings, "rounds": options.rounds}) for name, settings in _MODELS.items()}
    yield {"models": found, "about": circumstances(options)}


def report(results):
    """Return the sections of the page."""
    rows = []
    for name, found in results["models"].items():
        ratios = sorted(on / off for on, off in zip(found["on"], found["off"], strict=True))
        quarter = len(ratios) // 4
        rows.append(
            [
                name,
                f"{median(found['off']) * 1e3:.2f} ms",
                f"{median(found['on']) * 1e3:.2f} ms",
                f"{median(ratios):.3f} ({ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f})",
            ]
        )
    heads = ["model", "a step without", "with metrics", "ratio of a round (middle half)"]
    heads_alone = ["in each step, alone in one process", "median and range"]
    alone = [
        [title, median_and_range([1e6 * each[name] for each in results["alone"]], "{:.0f}", " µs")]
        for name, title in {"graph": "operations around three collectives", "hooks": "rows, step and logs"}.items()
    ]
    steps = f"{results['about']}\n\n{table(heads_alone, alone)}\n\n{table(heads, rows)}"
    return {**targets(TARGETS, results), "steps": steps}


if __name__ == "__main__":
    run(command("metrics", __doc__, rounds=41), measure, report)
