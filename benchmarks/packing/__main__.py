"""Sequences that are packed into rows of one length, beside padding to the longest, and beside Grain's packing."""

import sys
from statistics import median

import numpy as np

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, ratios, table, targets
from benchmarks.common.rounds import ROOT, Contender, python_with, take_turns
from benchmarks.packing.lengths import LONGEST, lengths
from tensorflowonspark.node.feed.bins import pack

_WAYS = {
    "pad": "padded to the longest",
    "pack": f'`pack={{"tokens": {LONGEST}}}`',
    "grain": "Grain's `FirstFitPackIterDataset`, 64 bins",
}
_SEQUENCES = 1773  # a fiftieth of SQuAD's
_PACKAGES = ["grain==0.2.18"]


def _padding(results, way):
    return 1 - results["tokens"] / (LONGEST * results["rounds"][way][0]["rows"])


def _faster(results, way):
    return median(ratios(results["rounds"], way, "pack", "seconds"))


TARGETS = [
    Target("padding of packed rows", lambda results: 100 * _padding(results, "pack"), 5, "{:.1f} %", at_least=False),
    Target("seconds of an epoch of padded rows, of those of packed ones", lambda r: _faster(r, "pad"), 1.5, "{:.2f}"),
    Target("seconds of an epoch of Grain's rows, of those of `pack`", lambda r: _faster(r, "grain"), 1.0, "{:.2f}"),
]


def measure(options, log):
    """Run the rounds."""
    size = {"sequences": max(320, int(_SEQUENCES * options.scale))}
    place = python_with(_PACKAGES, ROOT / ".venvs/grain").replace("bin/python", "")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    settings = {"GRAIN_PACKAGES": f"{place}lib/{version}/site-packages"}
    with (
        Contender(["-m", "benchmarks.packing.contender", "ours"], log) as ours,
        Contender(["-m", "benchmarks.packing.contender", "grain"], log, settings=settings) as grain,
    ):
        turns = {way: ours.turn(way=way, **size) for way in ("pad", "pack")} | {"grain": grain.turn(**size)}
        found = take_turns(turns, options.rounds, f"{size['sequences']:,} sequences", shown=_shown)
        packages = ("tensorflowonspark", "tensorflow", "keras", "pyspark")
        tokens = int(lengths(size["sequences"]).sum())
        about = circumstances(options, *_PACKAGES, packages=packages)
        yield {"rounds": found, "tokens": tokens, **size, "about": about, "all": _all_of_squad()}


def _all_of_squad():
    """Return the padding of all sequences, packed into rows of two lengths, in the order of a seed."""
    found = lengths(88_641)
    order = np.random.default_rng(0).permutation(len(found))
    return {size: 1 - int(found.sum()) / (size * len(pack(found, size, order))) for size in (LONGEST, 2048)}


def _shown(found):
    return f"{found['rows']:,} rows: {found['seconds']:.1f} s"


def report(results):
    """Return the sections of the page."""
    rows = [
        [
            title,
            f"{found[0]['rows']:,}",
            f"{100 * _padding(results, name):.1f} %",
            f"{median(results['tokens'] / each['seconds'] for each in found):,.0f}",
            median_and_range([each["seconds"] for each in found], "{:.1f}"),
            median_and_range([each["ready"] for each in found], "{:.2f}"),
        ]
        for name, title in _WAYS.items()
        for found in [results["rounds"][name]]
    ]
    head = [f"{results['sequences']:,} sequences", f"rows of {LONGEST}", "padding", "tokens/s", "an epoch", "before it"]
    alike = [f"{100 * share:.1f} % of rows of {size}" for size, share in results["all"].items()]
    whole = f"All 88,641 sequences by `pack`: {' and '.join(alike)} are padding."
    return {**targets(TARGETS, results), "all": whole, "ways": f"{results['about']}\n\n{table(head, rows)}"}


if __name__ == "__main__":
    run(command("packing", __doc__, scaled=True), measure, report)
