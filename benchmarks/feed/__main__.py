"""Rows from Spark into a training function: rows per second, later epochs, training and memory.

``throughput`` feeds DataFrames in Spark's memory to two nodes, on a standalone Spark cluster of two one-core workers,
beside a Spark job that only counts the same batches, which is the limit, and TensorFlowOnSpark 2.2.5 from PyPI.
``epochs`` and ``training`` time later epochs, without a model and with one, beside the same rows as numpy arrays in
memory. ``memory`` measures the memory of the processes that a stream passes through. ``2x`` runs one program of
TensorFlowOnSpark 2.x, which feeds an RDD of Python lists, with ours and with 2.2.5.
"""

import sys
from contextlib import ExitStack

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances
from benchmarks.common.rounds import Contender, python_of_2x, take_turns
from benchmarks.feed.report import draw, report
from benchmarks.feed.rows import FIT_ROWS, KINDS, RDD_ROWS, STREAM_ROWS
from benchmarks.feed.training import TITLES

_EPOCHS = 4
_STREAM_LIMIT = "64m"
_FEEDS = {
    "limit": {"measure": "limit"},
    "disk": {"measure": "feed", "cache": "disk", "shuffle": False},
    "disk, shuffled": {"measure": "feed", "cache": "disk", "shuffle": True},
    "memory": {"measure": "feed", "cache": "memory", "shuffle": False},
    "none": {"measure": "feed", "cache": None, "shuffle": False},
}


class Bench:
    """Options, and the contenders that are running.

    Parameters
    ----------
    options : argparse.Namespace
        From the command line.
    stack : contextlib.ExitStack
        Ends the contenders.
    log : file
        Receives their standard error.
    """

    def __init__(self, options, stack, log):
        self.options = options
        self._stack = stack
        self._log = log

    def contender(self, module, *arguments, python=sys.executable):
        """Start a contender that runs until the end of the part."""
        command = ["-m", f"benchmarks.feed.{module}", *arguments]
        return self._stack.enter_context(Contender(command, self._log, python))

    def in_memory(self, request):
        """Return a function that runs a round of the contender without Spark, in a process as fresh as a node."""

        def turn():
            with Contender(["-m", "benchmarks.feed.contenders", "in-memory"], self._log) as contender:
                return contender.round(request)

        return turn

    def take_turns(self, title, turns):
        """Return the results of all rounds, by contender."""
        return take_turns(turns, self.options.rounds, title)

    def rows(self, rows):
        """Return the number of rows that stands for a usual one."""
        return max(1_000, int(rows * self.options.scale))


def throughput(bench):
    """Measure rows per second of each kind of row and each feed."""
    ours = bench.contender("contenders", "ours")
    old = bench.contender("contenders", "2x", python=python_of_2x(bench.options))
    for kind, what in KINDS.items():
        rows = bench.rows(what.rows)
        turns = {name: ours.turn(kind=kind, rows=rows, **request) for name, request in _FEEDS.items()}
        # It checks once a second whether a partition has been taken: two partitions cost it the fewest checks.
        turns["2.2.5"] = old.turn(kind=kind, rows=bench.rows(what.old_rows), partitions=2)
        yield kind, bench.take_turns(f"throughput of {kind}", turns)


def epochs(bench):
    """Measure later epochs without a model."""
    ours = bench.contender("contenders", "ours")
    request = {"measure": "epochs", "kind": "floats", "rows": bench.rows(KINDS["floats"].rows), "epochs": _EPOCHS}
    turns = {
        "numpy": ours.turn(dataset=False, **request),
        "dataset": ours.turn(dataset=True, **request),
        "in memory": bench.in_memory(request),
    }
    yield "floats", bench.take_turns("later epochs", turns)


def training(bench):
    """Measure epochs of Keras's ``fit``."""
    ours = bench.contender("contenders", "ours")
    for model in bench.options.models.split(","):
        rows = bench.rows(FIT_ROWS)
        request = {"measure": "fit", "kind": "floats", "rows": rows, "epochs": _EPOCHS, "model": model}
        turns = {"ours": ours.turn(**request), "in memory": bench.in_memory(request)}
        yield model, bench.take_turns(f"training of the {model} model", turns)


def memory(bench):
    """Measure memory while a stream passes through."""
    ours = bench.contender("memory")
    request = {"rows": bench.rows(STREAM_ROWS), "limit": _STREAM_LIMIT, "pause": 0.01}
    turns = {str(partitions): ours.turn(partitions=partitions, **request) for partitions in (40, 4)}
    yield "stream", bench.take_turns("memory, partitions", turns)


def program_of_2x(bench):
    """Measure the same program of 2.x with ours and with 2.2.5, each with the number of partitions that suits it."""
    ours = bench.contender("contenders", "2x")
    old = bench.contender("contenders", "2x", python=python_of_2x(bench.options))
    turns = {
        "ours": ours.turn(kind="rdd", rows=bench.rows(RDD_ROWS), partitions=8),
        "2.2.5": old.turn(kind="rdd", rows=bench.rows(KINDS["floats"].old_rows), partitions=2),
    }
    yield "rdd", bench.take_turns("program of 2.x", turns)


PARTS = {"throughput": throughput, "epochs": epochs, "training": training, "memory": memory, "2x": program_of_2x}


def measure(options, log):
    """Run the parts that the command line names."""
    for part in options.parts.split(","):
        with ExitStack() as stack:
            bench = Bench(options, stack, log)
            found = dict(PARTS[part](bench))
            kinds = {name: (bench.rows(kind.rows), bench.rows(kind.old_rows)) for name, kind in KINDS.items()}
            rows = {**kinds, "stream": (bench.rows(STREAM_ROWS), 0)}
            yield {part: {"about": circumstances(options), "rows": rows, "found": found}}


if __name__ == "__main__":
    parser = command("feed", __doc__, parts=PARTS, scaled=True, beside_2x=True)
    parser.add_argument("--models", default=",".join(TITLES), help="of the part training (default: %(default)s)")
    run(parser, measure, report, draw)
