"""Trials of a search per minute, on two slots: with warm and with cold nodes, beside Optuna alone in one process."""

import statistics

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import Contender, take_turns

_NAMES = {
    "warm": "`tfos.tune` on `local[2]`, warm nodes",
    "cold": "`tfos.tune` on `local[2]`, `warm_nodes=False`",
    "optuna": "`study.optimize` in one process with all cores, without Spark",
}


def _per_minute(results, name):
    return [60 * results["trials"] / seconds for seconds in results["rounds"][name]]


def _ratio(name):
    def measure(results):
        return statistics.median(_per_minute(results, "warm")) / statistics.median(_per_minute(results, name))

    return measure


TARGETS = [
    Target("trials per minute with warm nodes, beside cold nodes", _ratio("cold"), 2.0, "{:.2f} times"),
    Target("trials per minute with warm nodes, beside Optuna alone", _ratio("optuna"), 1.0, "{:.2f} times"),
]


def measure(options, log):
    """Let the contenders run all trials in turn."""
    contenders = {name: Contender(["-m", "benchmarks.tune.contenders", name], log) for name in _NAMES}
    turns = {name: each.turn(trials=options.trials) for name, each in contenders.items()}
    try:
        rounds = take_turns(turns, options.rounds, f"{options.trials} trials", shown="{:.1f} s".format)
    finally:
        for each in contenders.values():
            each.__exit__()
    about = circumstances(options, f"{options.trials} trials in each round")
    yield {"rounds": rounds, "trials": options.trials, "about": about}


def report(results):
    """Return the sections of the page."""
    rows = [
        [
            title,
            median_and_range(_per_minute(results, name), "{:.1f}", ""),
            median_and_range([each / results["trials"] for each in results["rounds"][name]]),
        ]
        for name, title in _NAMES.items()
    ]
    figures = table(["contender", "trials per minute", "seconds per trial"], rows)
    return {**targets(TARGETS, results), "trials": f"{results['about']}\n\n{figures}"}


if __name__ == "__main__":
    parser = command("tune", __doc__, rounds=5)
    parser.add_argument("--trials", type=int, default=50, help="trials of a round (default: %(default)s)")
    run(parser, measure, report)
