"""Epochs of two workers with ``order="global"``, in which a step has the same rows on any number of workers.

They take turns with epochs in which each worker shuffles its own rows. The part `order` is the time in which a worker
computes the order of an epoch.
"""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, ratios, table, targets
from benchmarks.common.rounds import Contender, take_turns

_STEPS = 150
_BATCHES = (64, 256, 1024)
_PARTITIONS = (8, 48)
_ORDERED = (1_000_000, 10_000_000)


def _ratio(results, cell):
    return median(ratios(results["rounds"][cell], "global", "worker", "seconds"))


TARGETS = [
    Target(
        f'epoch with `order="global"`, of one with "worker"; {cell}',
        lambda results, cell=cell: _ratio(results, cell),
        1.05,
        "{:.2f}",
        at_least=False,
    )
    for cell in (f"batch {batch}, {partitions} partitions" for batch in _BATCHES for partitions in _PARTITIONS)
]


def measure(options, log):
    """Run the rounds of the parts that the command line names."""
    with Contender(["-m", "benchmarks.order.contender"], log) as ours:
        about = {"about": circumstances(options, packages=("tensorflowonspark", "tensorflow", "keras", "pyspark"))}
        if "fit" in options.parts.split(","):
            rounds = {}
            for batch in _BATCHES:
                for partitions in _PARTITIONS:
                    size = {"rows": int(_STEPS * options.scale) * batch, "partitions": partitions, "batch_size": batch}
                    turns = {each: ours.turn(what="fit", order=each, **size) for each in ("worker", "global")}
                    cell = f"batch {batch}, {partitions} partitions"
                    rounds[cell] = take_turns(turns, options.rounds, cell, shown=_shown)
            yield {"rounds": rounds, **about}
        if "order" in options.parts.split(","):
            turns = {str(rows): ours.turn(what="order", rows=rows, partitions=48) for rows in _ORDERED}
            yield {"orders": take_turns(turns, options.rounds, "order", shown=_shown)}


def _shown(found):
    return f"{found['seconds']:.2f} s"


def _seconds(found):
    return median_and_range([each["seconds"] for each in found])


def report(results):
    """Return the sections of the page."""
    sections = {}
    if "rounds" in results:
        rows = [
            [
                cell,
                f"{_ratio(results, cell):.2f}",
                *map(_seconds, of.values()),
            ]
            for cell, of in results["rounds"].items()
        ]
        shown = table(["", "ratio", 'seconds, `order="worker"`', 'seconds, `order="global"`'], rows)
        sections |= {**targets(TARGETS, results), "seconds": f"{results['about']}\n\n{shown}"}
    if "orders" in results:
        rows = [[f"{int(rows):,}", _seconds(found)] for rows, found in results["orders"].items()]
        sections["order"] = table(["rows of all workers", "seconds"], rows)
    return sections


if __name__ == "__main__":
    run(command("order", __doc__, parts=("fit", "order"), scaled=True), measure, report)
