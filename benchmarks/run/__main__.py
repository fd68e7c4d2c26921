"""From the command `tfos run` to the first line of the script.

Each round starts every command afresh: `tfos run --master local[2]` as on its first run and as on a later one, which
has the archive of Spark's classes; with two workers; `spark-submit` of an empty Python program, `spark-submit` of one
that starts a session, and a Python that imports TensorFlow; then an import of TensorFlow while Spark starts.
"""

import os
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import take_turns
from benchmarks.run.contenders import TURNS

_TITLES = {
    "first": "`tfos run --master local[2]`, the first run, to the script's first line",
    "later": "the same, the second run and later ones",
    "two": "the same with `--workers 2`, to the first line of the later worker",
    "submit": "`spark-submit --master local[2]` of an empty program, to its end",
    "session": "`spark-submit --master local[2]` of a program that starts a session, to its next line",
    "together": "a session and `import tensorflow`, started at the same time, until both are there",
    "tensorflow": "`python -c 'import tensorflow'`, to its end",
}
TARGETS = [
    Target(
        "first line of a later run, above spark-submit of an empty program and an import of TensorFlow",
        lambda results: _above(results["seconds"]),
        1.2,
        "{:.2f} s",
        at_least=False,
    )
]


def _above(seconds):
    """Return the seconds above the minimum: the median of the rounds' differences."""
    rounds = zip(seconds["later"], seconds["submit"], seconds["tensorflow"], strict=True)
    return median(ours - submit - tensorflow for ours, submit, tensorflow in rounds)


def measure(options, log):
    """Run the rounds."""
    load = f"load average {os.getloadavg()[0]:.1f} at the start"
    about = circumstances(options, load, packages=("tensorflowonspark", "pyspark", "tensorflow"))
    turns = {name: lambda turn=turn: turn(log) for name, turn in TURNS.items()}
    yield {"seconds": take_turns(turns, options.rounds, "start", shown="{:.2f} s".format), "about": about}


def report(results):
    """Return the sections of the page."""
    rows = [[_TITLES[name], median_and_range(each)] for name, each in results["seconds"].items()]
    return {**targets(TARGETS, results), "seconds": f"{results['about']}\n\n{table(['command', 'time'], rows)}"}


if __name__ == "__main__":
    run(command("run", __doc__), measure, report)
