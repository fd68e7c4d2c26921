"""Training that begins with the first rows: one epoch of 1.5 GB, beside feeding alone and training alone.

The part `cluster` is about ``cluster.train``, `run` about ``tfos.run(data=df)``.

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
_STARTS = ("all_rows", "first_rows")


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


def _of_held(results, step, what, start):
    return median(each[what] for each in results["run"]["rounds"][step][start])


RUN_TARGETS = [
    Target(
        'the first batch of `start="first_rows"`, of that of `start="all_rows"`',
        lambda results: (
            _of_held(results, "waits 15 ms", "first", "first_rows")
            / _of_held(results, "waits 15 ms", "first", "all_rows")
        ),
        0.5,
        at_least=False,
    ),
    *(
        Target(
            f'one epoch of `start="first_rows"`, of that of `start="all_rows"`; a step {step}',
            lambda results, step=step: (
                _of_held(results, step, "seconds", "first_rows") / _of_held(results, step, "seconds", "all_rows")
            ),
            1.0,
            at_least=False,
        )
        for step in _STEPS
    ),
]


def measure(options, log):
    """Run the rounds of the parts that the command line names."""
    rows = int(_GIGABYTES * options.scale * 1e9 / BYTES_PER_ROW)
    with Contender(["-m", "benchmarks.first_rows.contenders"], log) as ours:
        for part, ways in (("cluster", _WAYS), ("run", _STARTS)):
            if part not in options.parts.split(","):
                continue
            rounds = {}
            for step, seconds in _STEPS.items():
                turns = {how: ours.turn(held=part == "run", how=how, seconds=seconds, rows=rows) for how in ways}
                rounds[step] = take_turns(turns, options.rounds, step, shown=lambda each: f"{each['seconds']:.1f} s")
            if any(each["rows"] != rows for of in rounds.values() for way in of.values() for each in way):
                sys.exit("a way has fed another number of rows")
            packages = ("tensorflowonspark", "pyspark", "pyarrow")
            found = {"rounds": rounds, "rows": rows, "about": circumstances(options, packages=packages)}
            yield found if part == "cluster" else {"run": found}


def report(results):
    """Return the sections of the page."""
    sections = {}
    if "rounds" in results:
        sections |= {**targets(TARGETS, results), "seconds": _report_cluster(results)}
    if "run" in results:
        sections |= {"run targets": targets(RUN_TARGETS, results)["targets"], "run": _report_run(results["run"])}
    return sections


def _about(results):
    return f"{results['about']} {results['rows']:,} rows, {results['rows'] * BYTES_PER_ROW / 1e9:.1f} GB."


def _report_run(results):
    rows = [
        [f'{title}, `start="{start}"`', f"a step {step}", median_and_range([each[what] for each in of[start]])]
        for step, of in results["rounds"].items()
        for what, title in (("first", "the first batch"), ("seconds", "the end of the epoch"))
        for start in _STARTS
    ]
    return f"{_about(results)}\n\n{table(['', '', 'seconds after the nodes are up'], rows)}"


def _report_cluster(results):
    rows = []
    for step, of in results["rounds"].items():
        rows += [
            [title, f"a step {step}", median_and_range(_seconds(results, step, how))] for how, title in _WAYS.items()
        ]
        first = median_and_range([each["first"] for each in of["first_rows"]])
        rows.append(["the first batch, after Spark's first feeding task has ended", f"a step {step}", first])
    return f"{_about(results)}\n\n{table(['', '', 'seconds'], rows)}"


if __name__ == "__main__":
    run(command("first_rows", __doc__, parts=("cluster", "run"), scaled=True), measure, report)
