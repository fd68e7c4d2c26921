"""Parquet of any size: the nodes read it anew in each epoch, without a cache, beside Arrow's scanner alone.

Two workers read all rows of a directory once, in shuffled batches of NumPy arrays; the scanner is two processes with
one thread each, which read half of the files each and keep nothing. Both find the files in the system's cache as far as
it has room for them.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, percent, table, targets
from benchmarks.common.rounds import Contender, take_turns
from benchmarks.files.contenders import BYTES_PER_ROW, write_files

_GIGABYTES = 10.0
_MEGABYTE = 1 << 20
_TITLES = {"scanner": "Arrow's scanner alone", "ours": "`ctx.read_parquet(cache=None)`, shuffled"}


def _share(results):
    seconds = {name: median(each["seconds"] for each in rounds) for name, rounds in results["rounds"].items()}
    return seconds["scanner"] / seconds["ours"]


TARGETS = [
    Target("rows per second, of the scanner's", _share, 0.8, "{:.2f}"),
    Target(
        "the first batch, after the program asks",
        lambda results: median(each["first"] for each in results["rounds"]["ours"]),
        1.5,
        "{:.2f} s",
        at_least=False,
    ),
    Target(
        "disk that a node uses",
        lambda results: max(each["disk"] for each in results["rounds"]["ours"]) / _MEGABYTE,
        0,
        "{:.0f} MB",
        at_least=False,
    ),
]


def measure(options, log):
    """Write the files, and run the rounds."""
    rows = int(_GIGABYTES * options.scale * 1e9 / BYTES_PER_ROW)
    directory = tempfile.mkdtemp(prefix="tfos-files-", dir=options.directory)
    try:
        print(f"writing {rows:,} rows to {directory}", file=sys.stderr, flush=True)
        write_files(directory, rows)
        module = "benchmarks.files.contenders"
        with (
            Contender(["-m", module, "ours", directory], log) as ours,
            Contender(["-m", module, "scanner", directory], log) as scanner,
        ):
            turns = {"scanner": scanner.turn(), "ours": ours.turn()}
            rounds = take_turns(turns, options.rounds, "epoch", shown=lambda each: f"{each['seconds']:.1f} s")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if any(each["rows"] != rows for of in rounds.values() for each in of):
        sys.exit("a contender has read another number of rows")
    packages = ("tensorflowonspark", "pyspark", "pyarrow", "tensorflow")
    yield {"rounds": rounds, "rows": rows, "about": circumstances(options, packages=packages)}


def report(results):
    """Return the sections of the page."""
    size = results["rows"] * BYTES_PER_ROW
    rows = []
    for name, rounds in results["rounds"].items():
        seconds = [each["seconds"] for each in rounds]
        speed = f"{size / median(seconds) / _MEGABYTE:.0f} MB/s"
        first = median_and_range([each["first"] for each in rounds]) if name == "ours" else ""
        memory = f"{max(each['memory'] for each in rounds) / _MEGABYTE:.0f} MB"
        rows.append([_TITLES[name], median_and_range(seconds, "{:.1f}"), speed, first, memory])
    head = ["", "an epoch", "", "first batch", "most memory of a process"]
    text = f"{results['about']} {results['rows']:,} rows, {size / 1e9:.1f} GB; ours: {percent(_share(results))}."
    return {**targets(TARGETS, results), "seconds": f"{text}\n\n{table(head, rows)}"}


if __name__ == "__main__":
    parser = command("files", __doc__, scaled=True)
    parser.add_argument("--directory", type=Path, help="for the files (default: the system's directory for these)")
    run(parser, measure, report)
