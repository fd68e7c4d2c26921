"""The command line that all benchmarks share: options, kept results, printed and published reports."""

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.common.report import put_into
from benchmarks.common.rounds import ROOT

_SHOWN = (
    "rounds",
    "parts",
    "scale",
    "nodes",
    "workers",
    "seeds",
    "epochs",
    "base",
    "models",
    "trials",
    "keys",
)  # what a figure depends on


def command(name, description, *, rounds=5, parts=(), scaled=False, beside_2x=False):
    """Return the argument parser of a benchmark.

    Parameters
    ----------
    name : str
        The benchmark's folder, and its page below ``docs/benchmarks``.
    description : str
        Its first line is shown as help.
    rounds : int
        How many rounds count, unless ``--rounds`` is given; 0 if the benchmark has no such option.
    parts : sequence of str
        The parts that ``--parts`` chooses from.
    scaled : bool
        Whether ``--scale`` changes the numbers of rows.
    beside_2x : bool
        Whether TensorFlowOnSpark 2.2.5 is one of the contenders.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description.splitlines()[0])
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help="rounds that count (default: %(default)s)")
    if parts:
        parser.add_argument("--parts", default=",".join(parts), help="parts to run (default: %(default)s)")
    if scaled:
        parser.add_argument("--scale", type=float, default=1.0, help="times the usual numbers of rows")
    if beside_2x:
        parser.add_argument("--old-python", default=sys.executable, help="3.9 to 3.11, for TensorFlow 2.15")
        parser.add_argument("--old-venv", type=Path, default=ROOT / ".venvs/2.2.5", help="made if it does not exist")
    results = ROOT / f"build/benchmark-{name}.json"
    parser.add_argument("--results", type=Path, default=results, help="JSON file that keeps the results")
    parser.add_argument("--report-only", action="store_true", help="measure nothing, report the kept results")
    parser.add_argument("--publish", action="store_true", help="put the report into the page, draw its picture")
    parser.add_argument("--page", type=Path, default=ROOT / f"docs/benchmarks/{name}.md", help="what --publish changes")
    return parser


def run(parser, measure, report, draw=None):
    """Measure, keep the results, print their report and publish it if the command line asks for it.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        From `command`.
    measure : callable
        Takes the options and a log file; yields dicts of results, which are kept one by one.
    report : callable
        From all results to a dict of Markdown by the name of the page's section.
    draw : callable, optional
        Takes the results and the path of the page's picture.
    """
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # contenders and checkouts end with it
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    options.command = _command(parser, options)
    if not options.report_only:
        with open(options.results.with_suffix(".log"), "ab") as log:
            for found in measure(options, log):
                results |= found
                options.results.write_text(json.dumps(results, indent=1))
    sections = report(results)
    print("\n\n".join(sections.values()))
    if options.publish:
        put_into(options.page, sections)
        if draw:
            draw(results, options.page.with_suffix(".png"))


def _command(parser, options):
    """Return the command without the options that no figure depends on, such as paths."""
    changed = [name for name in _SHOWN if name in options and getattr(options, name) != parser.get_default(name)]
    return " ".join([parser.prog, *(f"--{name} {_text(getattr(options, name))}" for name in changed)])


def _text(value):
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
