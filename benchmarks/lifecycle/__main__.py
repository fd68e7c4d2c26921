"""Start-up and shutdown of a cluster of two nodes that do nothing but import TensorFlow.

The first part runs on standalone Spark clusters of two one-core workers: our clusters, detached and held; a bare Spark
job whose two tasks each start a fresh Python that imports TensorFlow, the minimum for any node; and TensorFlowOnSpark
2.2.5 from PyPI, in a virtual environment of its own, with Spark 3.5 and TensorFlow 2.15. The second part measures the
second cluster of an application on `local[2]`, with warm nodes and without.
"""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import Contender, python_of_2x, take_turns

_FIRST = {
    "bare": "a bare Spark job of two fresh `import tensorflow`",
    "detached": "ours, detached (to be fed later)",
    "held": "ours, held (reads its own data)",
    "2.2.5": "TensorFlowOnSpark 2.2.5",
}
_PACKAGES = ("tensorflowonspark", "pyspark", "tensorflow", "keras")
TARGETS = [
    Target("detached, above the bare job", lambda results: _above(results, "detached"), 2, "{:.2f} s", at_least=False),
    Target("held, above the bare job", lambda results: _above(results, "held"), 2, "{:.2f} s", at_least=False),
    Target(
        "second cluster of an application, until both programs have a model",
        lambda results: median(results["second"]["warm"]),
        2,
        "{:.2f} s",
        at_least=False,
    ),
]


def _above(results, cluster):
    return median(results["first"][cluster]) - median(results["first"]["bare"])


def measure(options, log):
    """Run the parts."""
    module = "benchmarks.lifecycle.contenders"
    about = circumstances(options, packages=_PACKAGES)
    if "first" in options.parts.split(","):
        python = python_of_2x(options)
        with (
            Contender(["-m", module, "first"], log) as ours,
            Contender(["-m", module, "2x"], log, python) as old,
        ):
            turns = {name: ours.turn(cluster=name) for name in _FIRST if name != "2.2.5"}
            turns["2.2.5"] = old.turn()
            yield {"first": take_turns(turns, options.rounds, "first cluster", shown="{:.2f} s".format)}
        yield {"about first": about}
    if "second" in options.parts.split(","):
        with Contender(["-m", module, "second"], log) as ours:
            turns = {name: ours.turn(nodes=name) for name in ("warm", "cold")}
            yield {"second": take_turns(turns, options.rounds, "second cluster", shown="{:.2f} s".format)}
            yield {"memory": ours.round({"nodes": "memory"}), "about second": about}


def report(results):
    """Return the sections of the page."""
    sections = targets(TARGETS, results)
    if "about first" in results:
        sections["first cluster"] = f"{results['about first']}\n\n{_first(results['first'])}"
    if "about second" in results:
        sections["second cluster"] = f"{results['about second']}\n\n{_second(results)}"
    return sections


def _first(seconds):
    bare = median(seconds["bare"])
    rows = [
        [title, f"{median(each) - bare:+.2f} s", f"{median(each) / bare:.2f}", median_and_range(each)]
        for title, each in ((_FIRST[name], seconds[name]) for name in _FIRST)
    ]
    return table(["cluster", "above the bare job", "times the bare job", "start-up and shutdown"], rows)


def _second(results):
    seconds, memory = results["second"], results["memory"]
    ratio = median(seconds["cold"]) / median(seconds["warm"])
    rows = [[name, median_and_range(each)] for name, each in seconds.items()]
    return (
        f"Warm nodes are {ratio:.1f} times as fast.\n\n{table(['nodes', 'until both programs have a model'], rows)}\n\n"
        f"The fork server has {memory['resident']} MB resident, {memory['own']} MB of which no other process shares."
    )


if __name__ == "__main__":
    run(command("lifecycle", __doc__, parts=("first", "second"), beside_2x=True), measure, report)
