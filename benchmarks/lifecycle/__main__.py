"""Start-up and shutdown of a cluster of two nodes that do nothing but import TensorFlow.

The first part runs on standalone Spark clusters of two one-core workers: our clusters, detached and held; a bare Spark
job whose two tasks each start a fresh Python that imports TensorFlow, the minimum for any node; and TensorFlowOnSpark
2.2.5 from PyPI, in a virtual environment of its own, with Spark 3.5 and TensorFlow 2.15. The second part measures the
second cluster of an application on `local[2]`, with warm nodes and without, with Keras on TensorFlow and on JAX.
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
_BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}
_PACKAGES = ("tensorflowonspark", "pyspark", "tensorflow", "keras", "jax")
TARGETS = [
    Target("detached, above the bare job", lambda results: _above(results, "detached"), 2, "{:.2f} s", at_least=False),
    Target("held, above the bare job", lambda results: _above(results, "held"), 2, "{:.2f} s", at_least=False),
    Target(
        "second cluster of an application, until both programs have a model",
        lambda results: max(median(each["warm"]) for each in results["second"].values()),
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
        second, memory = {}, {}
        for backend in _BACKENDS:
            with Contender(["-m", module, "second", backend], log) as ours:
                turns = {name: ours.turn(nodes=name) for name in ("warm", "cold")}
                title = f"second cluster, {backend}"
                second[backend] = take_turns(turns, options.rounds, title, shown="{:.2f} s".format)
                memory[backend] = ours.round({"nodes": "memory"})
        yield {"second": second, "memory": memory, "about second": about}


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
    rows = [
        [
            title,
            f"{median(seconds['cold']) / median(seconds['warm']):.1f}",
            median_and_range(seconds["warm"]),
            median_and_range(seconds["cold"]),
            f"{memory['resident']} MB",
            f"{memory['own']} MB",
        ]
        for backend, title in _BACKENDS.items()
        for seconds, memory in [(results["second"][backend], results["memory"][backend])]
    ]
    until = "until both programs have a model"
    heads = ["Keras on", "times as fast", f"warm nodes, {until}", f"cold ones, {until}", "fork server", "its own"]
    return table(heads, rows)


if __name__ == "__main__":
    run(command("lifecycle", __doc__, parts=("first", "second"), beside_2x=True), measure, report)
