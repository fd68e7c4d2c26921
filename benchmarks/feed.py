"""Rows from Spark into a training function: how many per second, and what they cost once they are there.

Part A feeds DataFrames that are in Spark's memory to two nodes, on a standalone Spark cluster of two one-core workers,
and sets ours beside a Spark job that only counts the same batches, which no feed can beat, and beside
TensorFlowOnSpark 2.2.5 from PyPI. Parts B and C time later epochs, without and with a model, beside the same rows as
numpy arrays in memory. Part D looks at the memory of the processes that a stream passes through.
Part E runs one program of TensorFlowOnSpark 2.x, which feeds an RDD of Python lists, with ours and with 2.2.5.
"""

import argparse
import json
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

from feed_fit import SHAPES
from feed_report import PICTURE, draw, report
from feed_rows import KINDS, RDD_ROWS
from lifecycle import old_python
from rounds import Contender, circumstances, environment

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
_EPOCHS = 4
_FIT_ROWS = 60_000
_STREAM_BYTES = 640_000_000
_STREAM_LIMIT = "64m"
_ROADS = {
    "limit": {"do": "limit"},
    "disk": {"do": "feed", "cache": "disk", "shuffle": False},
    "disk, shuffled": {"do": "feed", "cache": "disk", "shuffle": True},
    "memory": {"do": "feed", "cache": "memory", "shuffle": False},
    "none": {"do": "feed", "cache": "none", "shuffle": False},
}


class Bench:
    """What a part needs: options, contenders and a place for the results."""

    def __init__(self, options, results, stack, log):
        self.options = options
        self._results = results
        self._stack = stack
        self._log = log
        self._kept = {}

    def contender(self, script, python=sys.executable):
        """Start a contender that lives until the part ends."""
        if (script, python) not in self._kept:
            self._kept[script, python] = self._stack.enter_context(self.fresh(script, python))
        return self._kept[script, python]

    @contextmanager
    def fresh(self, script, python=sys.executable):
        """Start a contender for one round."""
        contender = Contender([python, str(_HERE / script)], environment(python), self._log)
        try:
            yield contender
        finally:
            contender.close()

    def take_turns(self, part, turns):
        """Let each of some turns (functions by name) have its round, over and over; keep what they return."""
        found = {name: [] for name in turns}
        for number in range(self.options.rounds + 1):
            for name, turn in turns.items():
                answer = turn()
                print(f"round {number}: {part} {name}: {answer}", file=sys.stderr, flush=True)
                if number:  # the first warms up
                    found[name].append(answer)
        about = {"text": circumstances(self.options.rounds), "rows": self.counts()}
        self._results |= {part: found, f"about {part[0]}": about}
        self.options.results.write_text(json.dumps(self._results, indent=1))

    def counts(self):
        """Return how many rows each kind has: a usual contender's, and 2.2.5's."""
        kinds = {kind: (self.rows(what.rows), self.rows(what.old_rows)) for kind, what in KINDS.items()}
        return {**kinds, "stream": self.rows(_STREAM_BYTES // KINDS["floats"].row_bytes)}

    def rows(self, rows):
        """Return how many rows to take where so many are usual."""
        return max(1_000, int(rows * self.options.rows))


def asking(contender, **order):
    """Return a function that has one round run."""
    return lambda: contender.round(json.dumps(order))


def throughput(bench):
    """Run part A."""
    ours = bench.contender("feed_ours.py")
    old = bench.contender("feed_2x.py", old_python(bench.options.old_python, bench.options.old_venv))
    for kind, what in KINDS.items():
        rows = bench.rows(what.rows)
        turns = {road: asking(ours, kind=kind, rows=rows, **order) for road, order in _ROADS.items()}
        # It waits for each partition to be taken, by looking once a second: so it gets no more of them than it needs.
        turns["2.2.5"] = asking(old, kind=kind, rows=bench.rows(what.old_rows), partitions=2)
        bench.take_turns(f"A {kind}", turns)


def pickled_rows(bench):
    """Run part E: the same program of 2.x, with ours and with 2.2.5."""
    old = old_python(bench.options.old_python, bench.options.old_venv)
    # In as many partitions as suit each.
    found = {"ours": (sys.executable, RDD_ROWS, 8), "2.2.5": (old, KINDS["floats"].old_rows, 2)}
    turns = {
        name: asking(bench.contender("feed_2x.py", python), kind="rdd", rows=bench.rows(rows), partitions=partitions)
        for name, (python, rows, partitions) in found.items()
    }
    bench.take_turns("E", turns)


def later_epochs(bench):
    """Run part B."""
    ours = bench.contender("feed_ours.py")
    order = {"do": "epochs", "kind": "floats", "rows": bench.rows(KINDS["floats"].rows), "epochs": _EPOCHS}
    turns = {
        "numpy": asking(ours, dataset=False, **order),
        "dataset": asking(ours, dataset=True, **order),
        "in memory": in_memory(bench, order),
    }
    bench.take_turns("B", turns)


def training(bench):
    """Run part C."""
    ours = bench.contender("feed_ours.py")
    for model in SHAPES:
        order = {"do": "fit", "kind": "floats", "rows": bench.rows(_FIT_ROWS), "epochs": _EPOCHS, "model": model}
        bench.take_turns(f"C {model}", {"ours": asking(ours, **order), "in memory": in_memory(bench, order)})


def in_memory(bench, order):
    """Return a function that runs one round of the contender without Spark, in a process as fresh as a node."""

    def turn():
        with bench.fresh("feed_in_memory.py") as contender:
            return contender.round(json.dumps(order))

    return turn


def memory(bench):
    """Run part D."""
    ours = bench.contender("feed_memory.py")
    order = {"rows": bench.counts()["stream"], "limit": _STREAM_LIMIT, "pause": 0.01}
    turns = {str(partitions): asking(ours, partitions=partitions, **order) for partitions in (40, 4)}
    bench.take_turns("D", turns)


def main():
    """Run the rounds, print the tables, draw the picture."""
    parts = {"A": throughput, "B": later_epochs, "C": training, "D": memory, "E": pickled_rows}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="A,B,C,D,E", help="which to run")
    parser.add_argument("--rows", type=float, default=1.0, help="times the usual numbers of rows")
    parser.add_argument("--old-python", default=sys.executable, help="3.8 to 3.11, for TensorFlow 2.15")
    parser.add_argument("--old-venv", type=Path, default=Path(".venvs/2.2.5"))
    parser.add_argument("--results", type=Path, default=_ROOT / "build/benchmark-feed.json", help="kept here as JSON")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--report-only", action="store_true", help="of the results that are there")
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    for name in [] if options.report_only else options.parts.split(","):
        with ExitStack() as stack, open(options.results.with_suffix(".log"), "ab") as log:
            parts[name](Bench(options, results, stack, log))
    print(report(results))
    draw(results, options.picture)


if __name__ == "__main__":
    main()
