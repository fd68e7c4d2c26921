"""A step of a training beside which an evaluator evaluates: on a processor of its own, and on one that it shares.

In one cluster epochs take turns: one while the evaluator waits for a checkpoint, and one while it evaluates.
"""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import Contender

_CASES = {
    "apart": "worker and evaluator have a processor each, as on hosts of their own",
    "shared": "both share two processors, which the worker alone would take",
}


def _ratios(found, clock):
    pairs = zip(found["evaluates"], found["waits"], strict=True)
    return [evaluates[clock] / waits[clock] for evaluates, waits in pairs]


TARGETS = [
    Target(
        "a step beside an evaluator that evaluates, on a processor of its own",
        lambda results: median(_ratios(results["apart"], "wall")),
        1.02,
        "{:.3f} times one beside an evaluator that waits",
        at_least=False,
    ),
    Target(
        "processor time of an evaluator that waits",
        lambda results: 100 * results["apart"]["idle"],
        1.0,
        "{:.2f} % of a processor",
        at_least=False,
    ),
]


def measure(options, log):
    """Train on one cluster for each case."""
    with Contender(["-m", "benchmarks.evaluator.contender"], log) as ours:
        for case in _CASES:
            found = ours.round({"apart": case == "apart", "rounds": options.rounds})
            yield {case: {**found, "about": circumstances(options)}}


def report(results):
    """Return the sections of the page."""
    heads = ["", "a step while it waits", "while it evaluates", "ratio of a round (middle half)", "of processor time"]
    rows = []
    for case, title in _CASES.items():
        found = results[case]
        wall, processor = (sorted(_ratios(found, clock)) for clock in ("wall", "processor"))
        quarter = len(wall) // 4
        steps = [[1e3 * each["wall"] for each in found[what]] for what in ("waits", "evaluates")]
        rows.append(
            [
                title,
                *(median_and_range(each, "{:.1f}", " ms") for each in steps),
                f"{median(wall):.3f} ({wall[quarter]:.3f} to {wall[-1 - quarter]:.3f})",
                f"{median(processor):.3f} ({processor[quarter]:.3f} to {processor[-1 - quarter]:.3f})",
            ]
        )
    return {**targets(TARGETS, results), "steps": f"{results['apart']['about']}\n\n{table(heads, rows)}"}


if __name__ == "__main__":
    run(command("evaluator", __doc__, rounds=21), measure, report)
