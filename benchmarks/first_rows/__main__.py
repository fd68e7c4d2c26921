"""Training that begins with the first rows: one epoch of 1.5 GB, beside feeding alone and training alone.

Two workers are fed from Spark's memory. A step either waits, as for an accelerator, or computes on the processors that
feeding needs too. Training alone is an epoch over rows that have arrived before.
"""

import sys
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import Contender, take_turns
from benchmarks.first_rows.contenders import BYTES_PER_ROW

_GIGABYTES = 1.5
_STEPS = {"waits 15 ms": 0.015, "computes": 0.0}
_WAYS = {
    "feeding": "feeding alone",
    "epoch": "training alone",
    "all_rows": 'one epoch, `start="all_rows"`',
    "first_rows": 'one epoch, `start="first_rows"`',
}


def _seconds(results, step, how):
    return [each["pass" if how == "epoch" else "seconds"] for each in results["rounds"][step][how]]


def _ratio(results, step):
    longer = max(median(_seconds(results, step, how)) for how in ("feeding", "epoch"))
    return median(_seconds(results, step, "first_rows")) / longer


def _first_step(results):
    return median(each["first"] for each in results["rounds"]["waits 15 ms"]["first_rows"])


TARGETS = [
    *(
        Target(
            f"one epoch, of the longer of feeding and training alone; a step {step}",
            lambda results, step=step: _ratio(results, step),
            1.1,
            "{:.2f}",
            at_least=False,
        )
        for step in _STEPS
    ),
    Target("the first batch, after Spark's first feeding task has ended", _first_step, 1.0, "{:.2f} s", at_least=False),
]


def measure(options, log):
    """Run the rounds."""
    rows = int(_GIGABYTES * options.scale * 1e9 / BYTES_PER_ROW)
    rounds = {}
    with Contender(["-m", "benchmarks.first_rows.contenders"], log) as ours:
        for step, seconds in _STEPS.items():
            turns = {how: ours.turn(how=how, seconds=seconds, rows=rows) for how in _WAYS}
            rounds[step] = take_turns(turns, options.rounds, step, shown=lambda each: f"{each['seconds']:.1f} s")
    if any(each["rows"] != rows for of in rounds.values() for way in of.values() for each in way):
        sys.exit("a way has fed another number of rows")
    packages = ("tensorflowonspark", "pyspark", "pyarrow")
    yield {"rounds": rounds, "rows": rows, "about": circumstances(options, packages=packages)}


def report(results):
    """Return the sections of the page."""
    rows = []
    for step, of in results["rounds"].items():
        rows += [
            [title, f"a step {step}", median_and_range(_seconds(results, step, how))] for how, title in _WAYS.items()
        ]
        first = median_and_range([each["first"] for each in of["first_rows"]])
        rows.append(["the first batch, after Spark's first feeding task has ended", f"a step {step}", first])
    text = f"{results['about']} {results['rows']:,} rows, {results['rows'] * BYTES_PER_ROW / 1e9:.1f} GB."
    return {**targets(TARGETS, results), "seconds": f"{text}\n\n{table(['', '', 'seconds'], rows)}"}


if __name__ == "__main__":
    run(command("first_rows", __doc__, scaled=True), measure, report)
