"""From a DataFrame in Spark's memory to all rows of three epochs in two processes, beside what one does without us.

``ours`` feeds a cluster. ``pyarrow`` and ``ray`` read Parquet that Spark has written: with pyarrow, by hand, and with
Ray Data's ``streaming_split``. ``streaming`` reads shards that mosaicml-streaming's converter has written. Each takes
the same rows in batches of NumPy arrays; a round in which a row is missing or was seen twice fails.
"""

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances
from benchmarks.common.rounds import ROOT, Contender, python_with, take_turns
from benchmarks.peers import passes
from benchmarks.peers.report import draw, report, total
from tests.support.standalone import unused_port

_ROWS = 150_000
_SHUFFLE_BUFFER = 4096  # rows; of Ray Data's local shuffle
_LOADERS = {"in the process": 0, "a loader process": 1}  # of each of mosaicml-streaming's two processes
_KEPT = {False: "read anew", True: "kept"}
_PEERS = {
    "ray": ["ray[data]==2.60.0"],
    "streaming": ["mosaicml-streaming==0.13.0", "torch==2.15.0"],
}
_SHARED = ("pyspark", "pyarrow")  # in our version


class Bench:
    """Contenders that are running, and directories for their files.

    Parameters
    ----------
    options : argparse.Namespace
        From the command line.
    stack : contextlib.ExitStack
        Ends the contenders, and removes the files.
    log : file
        Receives their standard error.
    """

    def __init__(self, options, stack, log):
        self.options = options
        self.rows = max(1, round(_ROWS * options.scale / 2 / passes.PARTITIONS)) * 2 * passes.PARTITIONS
        self._stack = stack
        self._log = log
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfos-peers-")))

    def spark(self, python=sys.executable):
        """Start a contender with a Spark session."""
        return self._stack.enter_context(Contender(["-m", "benchmarks.peers.from_spark"], self._log, python))

    def write(self, spark, form):
        """Write the rows; return the directory, and when that began and ended."""
        directory = str(self._directory / form)
        return directory, spark.round({"rows": self.rows, "write": form, "directory": directory})

    def read(self, module, request, python=sys.executable, settings=None):
        """Start a process, and return what it finds."""
        with Contender(["-m", f"benchmarks.peers.{module}"], self._log, python, settings=settings) as reader:
            return reader.round(request)

    def read_as_ranks(self, module, request, python=sys.executable):
        """Start two processes, in the environment that torch's launcher gives them; return what they find."""
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port()), "WORLD_SIZE": "2"}

        def one(rank):
            settings = {**address, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
            return self.read(module, {**request, "rank": rank}, python, settings)

        with ThreadPoolExecutor(2) as both:
            return list(both.map(one, range(2)))

    def spans(self, name, begin, written, processes):
        """Return the seconds of each stage of a round in which each row was seen once per epoch."""
        passes.check(name, self.rows, processes)
        return passes.spans(begin, written, processes)


def ours(bench, spark):
    """Return turns of our clusters; no node is forked from a warm one."""

    def turn(start):
        def one_round():
            found = spark.round({"rows": bench.rows, "start": start, "warm": False})
            return {start: bench.spans(start, **found)}

        return one_round

    return {"ours": turn("all_rows"), "ours, first rows": turn("first_rows")}


def parquet(bench, spark, by_hand, ray):
    """Return a turn that writes Parquet once, and reads it in each way; without Ray Data if its Python is None."""

    def read_in_each_way():
        directory, written = bench.write(spark, "parquet")
        found = {}
        for kept in (False, True):
            request = {"directory": directory, "kept": kept}
            if by_hand:
                read = _timed(lambda each=request: bench.read_as_ranks("pyarrow_by_hand", each))
                found[f"pyarrow, {_KEPT[kept]}"] = read
            if ray:
                # A short path, because sockets lie in it.
                with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as scratch:
                    request = {**request, "buffer": _SHUFFLE_BUFFER, "scratch": scratch}
                    found[f"ray, {_KEPT[kept]}"] = _timed(lambda each=request: bench.read("ray_data", each, ray))
        return {name: _after(bench, name, written, *each) for name, each in found.items()}

    return {"parquet": read_in_each_way}


def streaming(bench, python):
    """Return a turn that writes shards of mosaicml-streaming, and reads them."""
    spark = bench.spark(python)

    def write_and_read():
        directory, written = bench.write(spark, "mds")
        found = {}
        for how, loaders in _LOADERS.items():
            request = {"directory": directory, "loaders": loaders}
            read = _timed(lambda each=request: bench.read_as_ranks("mosaicml", each, python))
            found[f"streaming, {how}"] = _after(bench, "streaming", written, *read)
        return found

    return {"streaming": write_and_read}


def _timed(read):
    """Return the time, and what a function returns."""
    return time.time(), read()


def _after(bench, name, written, began, processes):
    """Return the spans as if the processes had been started when the files were written."""
    begin = began - (written["written"] - written["begin"])
    return {**bench.spans(name, begin, began, processes), "bytes": written["bytes"]}


def _environments(parts):
    """Return the Python of each peer, and for those that have none the reason."""
    pythons, reasons = {}, {}
    shared = [f"{package}=={version(package)}" for package in _SHARED]
    for peer in [each for each in _PEERS if each in parts]:
        try:
            pythons[peer] = python_with([*_PEERS[peer], *shared, "pandas"], ROOT / f".venvs/{peer}")
        except (OSError, subprocess.CalledProcessError) as error:
            reasons[peer] = f"{', '.join(_PEERS[peer])} can't be installed: {error}"
    return pythons, reasons


def measure(options, log):
    """Run the rounds."""
    parts = options.parts.split(",")
    pythons, reasons = _environments(parts)
    reasons |= {part: "left out on the command line" for part in PARTS if part not in parts}
    with ExitStack() as stack:
        bench, turns = Bench(options, stack, log), {}
        spark = bench.spark()
        if "ours" in parts:
            turns |= ours(bench, spark)
        if "pyarrow" in parts or "ray" in pythons:
            turns |= parquet(bench, spark, "pyarrow" in parts, pythons.get("ray"))
        if "streaming" in pythons:
            turns |= streaming(bench, pythons["streaming"])
        rounds = take_turns(turns, options.rounds, "three epochs", shown=_shown)
    found = {}
    for each in (result for results in rounds.values() for result in results):
        for name, spans in each.items():
            found.setdefault(name, []).append(spans)
    peers = ", ".join(name for peer in pythons for name in _PEERS[peer])
    about = circumstances(options, *filter(None, [peers]), packages=("tensorflowonspark", "pyspark", "pyarrow"))
    yield {"rounds": found, "not run": reasons, "rows": bench.rows, "about": about}


def _shown(result):
    return ", ".join(f"{name} {total(spans):.1f} s" for name, spans in result.items())


PARTS = ("ours", "pyarrow", "ray", "streaming")

if __name__ == "__main__":
    run(command("peers", __doc__, parts=PARTS, scaled=True), measure, report, draw)
