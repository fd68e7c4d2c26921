"""One small network for each key: ``tfos.fit_each`` beside ``applyInPandas``, and with an executor that is killed."""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import Contender, take_turns

_WAYS = {
    "ours": "`tfos.fit_each`, a process for each key",
    "build": "`tfos.fit_each(build=...)`, one model whose weights are set again",
    "pandas": "`applyInPandas` with Keras in the function",
}
_ENDS = {"whole": "no executor is killed", "killed": "one of two is killed when half of the keys are done"}


def _ratio(name):
    def measure(results):
        found = results["rounds"]
        return median(each["seconds"] for each in found["pandas"]) / median(each["seconds"] for each in found[name])

    return measure


TARGETS = [
    Target("time of `applyInPandas`, beside `fit_each`", _ratio("ours"), 1.0, "{:.2f} times"),
    Target("time of `applyInPandas`, beside `fit_each(build=...)`", _ratio("build"), 2.0, "{:.2f} times"),
    Target(
        "models that a killed executor makes train again",
        lambda results: max(each["calls"] for each in results["kills"]["killed"]) - results["kill_keys"],
        1,
        "{:.0f}",
        at_least=False,
        optional=True,
    ),
]


def measure(options, log):
    """Run the parts."""
    parts = options.parts.split(",")
    if "ways" in parts:
        contenders = {name: Contender(["-m", "benchmarks.each.contender", name], log) for name in _WAYS}
        turns = {name: each.turn(keys=options.keys) for name, each in contenders.items()}
        try:
            for each in contenders.values():  # imports Keras in Spark's workers, which later rounds find
                each.round({"keys": 4})
            found = take_turns(turns, options.rounds, f"{options.keys} keys", shown=_shown, warm_up=False)
        finally:
            for each in contenders.values():
                each.__exit__()
        yield {"rounds": found, "keys": options.keys, "about": circumstances(options, warm_up=False)}
    if "killed" in parts:
        with Contender(["-m", "benchmarks.each.contender", "killed"], log) as ours:
            ours.round({"keys": 4, "kill": False})
            turns = {name: ours.turn(keys=options.keys, kill=name == "killed") for name in _ENDS}
            found = take_turns(turns, options.rounds, f"{options.keys} keys", shown=_shown, warm_up=False)
        yield {"kills": found, "kill_keys": options.keys, "about_kills": circumstances(options, warm_up=False)}


def _shown(found):
    return f"{found['seconds']:.1f} s, {found['memory']:.0f} MiB"


def report(results):
    """Return the sections of the page."""
    sections = targets(TARGETS, results)
    if "rounds" in results:
        keys = results["keys"]
        rows = [
            [
                title,
                median_and_range([each["seconds"] for each in results["rounds"][name]], "{:.1f}"),
                f"{1000 * median(each['seconds'] for each in results['rounds'][name]) / keys:.0f} ms",
                f"{median(each['memory'] for each in results['rounds'][name]):.0f} MiB",
            ]
            for name, title in _WAYS.items()
        ]
        figures = table(["way", f"{keys:,} networks", "a network", "largest process that trains"], rows)
        sections["ways"] = f"{results['about']}\n\n{figures}"
    if "kills" in results:
        rows = [
            [
                title,
                median_and_range([each["seconds"] for each in results["kills"][name]], "{:.1f}"),
                f"{median(each['calls'] for each in results['kills'][name]):.0f}",
            ]
            for name, title in _ENDS.items()
        ]
        figures = table(["", f"{results['kill_keys']:,} networks", "calls of the function"], rows)
        sections["killed"] = f"{results['about_kills']}\n\n{figures}"
    return sections


if __name__ == "__main__":
    parser = command("each", __doc__, rounds=1, parts=("ways", "killed"))
    parser.add_argument("--keys", type=int, default=10_000, help="networks of a round (default: %(default)s)")
    run(parser, measure, report)
