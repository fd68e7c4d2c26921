"""How cost grows with everything that can be many: partitions, columns, rows, files, checkpoints, nodes and trials.

Each part measures one of them at several sizes, in rounds in which all sizes take turns. The report has the exponent of
each cost: the slope of log cost over log size. An exponent above 1.1 is a missed target.
"""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances
from benchmarks.common.rounds import Contender, take_turns
from benchmarks.growth.parts import PARTS
from benchmarks.growth.report import draw, report, shown

_LONG_SECONDS = 60  # a size that takes longer has one round
_MOST_SECONDS = 900  # of a round, which then fails


def measure(options, log):
    """Run the parts that the command line names, each in a directory of its own for all its files."""
    for name in options.parts.split(","):
        part = PARTS[name]
        with (
            tempfile.TemporaryDirectory(
                prefix="tfos-growth-", dir=options.directory, ignore_cleanup_errors=True
            ) as directory,
            ExitStack() as stack,
        ):
            turns = _turns(part, part.scaled(options.scale), directory, stack, log)
            found = _rounds(turns, options.rounds, name)
        yield {name: {"about": circumstances(options), "found": found}}


def _turns(part, sizes, directory, stack, log):
    """Return a function for each size that runs one round."""

    def contender():
        settings = {"TMPDIR": directory, "SPARK_LOCAL_DIRS": directory}
        return Contender(part.command, log, settings=settings, seconds=_MOST_SECONDS)

    def alone(size):
        with contender() as fresh:
            return fresh.round({part.request: size})

    if part.fresh:
        return {str(size): lambda size=size: alone(size) for size in sizes}
    one = stack.enter_context(contender())
    return {str(size): one.turn(**{part.request: size}) for size in sizes}


def _rounds(turns, rounds, title):
    """Return the results of all rounds by size; the smallest size first runs once more, which does not count."""
    seconds = {}

    def timed(size, turn):
        def once():
            started = time.monotonic()
            result = turn()
            seconds[size] = time.monotonic() - started
            return result

        return once

    next(iter(turns.values()))()
    turns = {size: timed(size, turn) for size, turn in turns.items()}
    found = take_turns(turns, 1, title, shown=shown, warm_up=False)
    short = {size: turn for size, turn in turns.items() if seconds[size] < _LONG_SECONDS}
    further = take_turns(short, rounds - 1, title, shown=shown, warm_up=False)
    return {size: [*found[size], *further.get(size, [])] for size in turns}


def main():
    """Run the benchmark."""
    parser = command("growth", __doc__, rounds=3, parts=PARTS)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="leave out sizes above this part of the largest, but for two"
    )
    parser.add_argument("--directory", type=Path, help="for the files (default: the system's directory for these)")
    run(parser, measure, report, draw)


if __name__ == "__main__":
    main()
