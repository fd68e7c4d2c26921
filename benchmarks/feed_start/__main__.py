"""The time that a feed takes beside its rows: small feeds, and the first feed of an application.

``small`` feeds a thousand rows again and again to a cluster of two nodes, beside a Spark job that counts them.
``first`` is one `tensorflowonspark.run` with data in a new application, to the first step of a model, beside the two
things that it can't do without: Spark's first job on the same rows, and an import of TensorFlow with one step. The
processors allow both in the longer one's time, or in that in which all of them are busy with both.
"""

import os
from argparse import Namespace
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import Contender, take_turns

_MODULE = "benchmarks.feed_start.contenders"
_SMALL_ROWS = 1_000
_SMALL_FEEDS = 100
_FIRST_ROWS = 150_000
_SMALL = {
    "count": ("a Spark job that counts the rows", {"how": "count"}),
    "disk": ("a feed, cached on disk (the default)", {"how": "feed", "cache": "disk"}),
    "memory": ("a feed, cached in memory", {"how": "feed", "cache": "memory"}),
    "none": ("a feed, streamed", {"how": "feed", "cache": None}),
}
_FIRST = {
    "count": "Spark's first job: it counts the rows in Python",
    "import": "an import of TensorFlow, and one step",
    "run": "`tfos.run(data=df)`, to the first step",
    "run early": 'the same with `start="first_rows"`',
    "train early": '`Cluster` and `train(df, start="first_rows")`: nodes first, then the rows as they arrive',
}


def _above(results, how):
    found = results["small"]["found"]
    return median(found[how]) - median(found["count"])


def _first_medians(results, measure):
    found = results["first"]["found"]
    return {how: median(each[measure] for each in found[how]) for how in _FIRST}


def _beside_the_least(results, how):
    """Return a time, divided by the least in which the processors can do the job and the import."""
    seconds, busy = (_first_medians(results, measure) for measure in ("seconds", "busy"))
    return seconds[how] / max(seconds["count"], seconds["import"], (busy["count"] + busy["import"]) / os.cpu_count())


TARGETS = [
    *(
        Target(
            f"{_SMALL[how][0]}, of {_SMALL_ROWS:,} rows, above the job that counts them",
            lambda results, how=how: _above(results, how),
            0.15,
            "{:.2f} s",
            at_least=False,
        )
        for how in ("disk", "memory", "none")
    ),
    *(
        Target(
            f"the first step of an application, {title}: of what the processors allow for job and import",
            lambda results, how=how: _beside_the_least(results, how),
            1.2,
            at_least=False,
        )
        for how, title in (("run", "by `tfos.run`"), ("train early", "nodes first"))
    ),
]


def small(options, log):
    """Return the seconds of each small feed and job."""
    with Contender(["-m", _MODULE, "small"], log) as contender:
        turns = {name: contender.turn(rows=_SMALL_ROWS, **request) for name, (_, request) in _SMALL.items()}
        return take_turns(turns, max(1, int(_SMALL_FEEDS * options.scale)), "small feeds", shown="{:.2f} s".format)


def first(options, log):
    """Return the seconds of each first feed, job and import, each in new processes."""

    def turn(how):
        def one_round():
            with Contender(["-m", _MODULE, "import" if how == "import" else "first"], log) as contender:
                return contender.round({"how": how, "rows": max(1_000, int(_FIRST_ROWS * options.scale))})

        return one_round

    return take_turns(
        {how: turn(how) for how in _FIRST}, options.rounds, "first feed", shown="{0[seconds]:.1f} s".format
    )


PARTS = {"small": small, "first": first}


def measure(options, log):
    """Run the parts that the command line names."""
    for part in options.parts.split(","):
        found = PARTS[part](options, log)
        rounds = Namespace(**{**vars(options), "rounds": len(found["count"])})
        yield {part: {"about": circumstances(rounds), "found": found}}


def _small(results):
    found = results["small"]["found"]
    rows = [
        [title, f"{_above(results, how):+.3f} s", median_and_range(found[how], "{:.3f}")]
        for how, (title, _) in _SMALL.items()
    ]
    return "\n\n" + table([f"{_SMALL_ROWS:,} rows", "above the job", "seconds"], rows)


def _first(results):
    found = results["first"]["found"]
    busy = _first_medians(results, "busy")
    rows = [
        [
            title,
            f"{_beside_the_least(results, how):.2f}",
            median_and_range([each["seconds"] for each in found[how]], "{:.1f}"),
            f"{busy[how]:.1f} s",
        ]
        for how, title in _FIRST.items()
    ]
    heads = [f"{_FIRST_ROWS:,} rows of 784 float32", "of what the processors allow", "seconds", "processors busy"]
    return "\n\n" + table(heads, rows)


def report(results):
    """Return the sections of the page."""
    makers = {"small": _small, "first": _first}
    sections = {part: results[part]["about"] + make(results) for part, make in makers.items() if part in results}
    return {**targets(TARGETS, results), **sections}


if __name__ == "__main__":
    run(command("feed_start", __doc__, parts=PARTS, scaled=True), measure, report)
