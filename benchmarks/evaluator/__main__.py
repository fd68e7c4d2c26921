"""A step of a training beside which an evaluator evaluates: on a processor of its own, and on those that both share.

In one cluster epochs take turns: one while the evaluator waits for a checkpoint, one while it computes as much that has
nothing to do with the training, and one while it evaluates a checkpoint. The middle one is what another host would do
to a machine of which both are a part: nothing of it comes from the evaluation.
"""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, ratios, table, targets
from benchmarks.common.rounds import Contender

_CASES = {
    "apart": "worker and evaluator have a processor each, as on hosts of their own",
    "shared": "both share the two processors, which the worker alone would take",
}


TARGETS = [
    Target(
        "a step beside an evaluation on a processor of its own, to one beside other work there",
        lambda results: median(ratios(results["apart"], "evaluates", "other", "wall")),
        1.02,
        "{:.3f} times",
        at_least=False,
    ),
    Target(
        "processor time of a step beside an evaluation, to one beside an evaluator that waits",
        lambda results: median(ratios(results["apart"], "evaluates", "waits", "processor")),
        1.02,
        "{:.3f} times",
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


def _middle(of_rounds):
    ordered = sorted(of_rounds)
    quarter = len(ordered) // 4
    return f"{median(ordered):.3f} ({ordered[quarter]:.3f} to {ordered[-1 - quarter]:.3f})"


def report(results):
    """Return the sections of the page."""
    sections = {**targets(TARGETS, results)}
    heads = ["the evaluator", "a step", "of processor time", "to one beside it that evaluates (middle half)"]
    doing = {"waits": "waits", "other": "does other work", "evaluates": "evaluates"}
    for case, title in _CASES.items():
        found = results[case]
        rows = []
        for name, text in doing.items():
            steps = [
                median_and_range([1e3 * each[clock] for each in found[name]], "{:.1f}", " ms")
                for clock in ("wall", "processor")
            ]
            rows.append(
                [text, *steps, "" if name == "evaluates" else _middle(ratios(found, "evaluates", name, "wall"))]
            )
        sections[case] = f"{found['about']} {title[0].upper()}{title[1:]}.\n\n{table(heads, rows)}"
    return sections


if __name__ == "__main__":
    run(command("evaluator", __doc__, rounds=15), measure, report)
