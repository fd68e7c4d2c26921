"""Two revisions side by side: the effect of a change on start-up, feed, inference and recovery.

The contenders of other benchmarks run from the checkout of each revision, with the library of that revision, and take
turns. Figures are compared as medians; the ranges show how much the machine itself varies.
"""

import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances, median_and_range, table
from benchmarks.common.rounds import ROOT, Contender, take_turns
from benchmarks.revisions.layouts import layout_of


def _later_epochs(seconds):
    return median(seconds[1:])


@dataclass(frozen=True)
class Case:
    """One figure of both revisions.

    Parameters
    ----------
    part : str
        The part of the benchmark that it belongs to.
    title : str
        Its name in the table.
    pick : callable
        From the contender's result to the figure.
    rate : bool
        Whether the figure is rows per second, where more is better, and not seconds.
    """

    part: str
    title: str
    pick: Callable = float
    rate: bool = False


CASES = {
    "detached": Case("lifecycle", "a cluster's start-up and shutdown, detached"),
    "held": Case("lifecycle", "a cluster's start-up and shutdown, held"),
    "second": Case("lifecycle", "second cluster of an application, warm nodes"),
    "cached": Case("feed", "784 float32, cached on disk, shuffled", rate=True),
    "streamed": Case("feed", "784 float32, streamed", rate=True),
    "epochs": Case("feed", "a later epoch as `tf.data.Dataset`", _later_epochs),
    "small": Case("feed", "an epoch of `fit`, small model", _later_epochs),
    "middle": Case("feed", "an epoch of `fit`, middle model", _later_epochs),
    "transform": Case("inference", "`KerasModel.transform`, 64 float32", rate=True),
    "notice": Case("recovery", "death of a node to the driver's error", lambda result: result["noticed"]),
    "recovery": Case("recovery", "death of a node to the next step, warm nodes", lambda result: result["all"]),
}
PARTS = list(dict.fromkeys(case.part for case in CASES.values()))


def measure(options, log):
    """Run the cases of the parts that the command line names, one after the other."""
    with ExitStack() as stack:
        before = Path(stack.enter_context(tempfile.TemporaryDirectory()), "before")
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(before), options.base], check=True, cwd=ROOT
        )
        stack.callback(subprocess.run, ["git", "worktree", "remove", "--force", str(before)], check=True, cwd=ROOT)
        trees = {"before": before, "after": ROOT}
        layouts = {revision: layout_of(tree)(options.scale) for revision, tree in trees.items()}
        for names in _groups(options.parts.split(","), layouts["after"]):
            with ExitStack() as running:
                contenders = {
                    revision: running.enter_context(_start(tree, layouts[revision][names[0]][0], log))
                    for revision, tree in trees.items()
                }
                for name in names:
                    turns = {
                        revision: _turn(contender, layouts[revision][name][1], CASES[name].pick)
                        for revision, contender in contenders.items()
                    }
                    found = take_turns(turns, options.rounds, CASES[name].title, shown="{:,.3f}".format)
                    yield {name: {"about": _about(options), "found": found}}


def _groups(parts, layout):
    """Return the cases of some parts, in groups that share a contender."""
    groups = {}
    for name, case in CASES.items():
        if case.part in parts:
            groups.setdefault(tuple(layout[name][0]), []).append(name)
    return groups.values()


def _start(tree, arguments, log):
    return Contender(arguments, log, tree=tree, settings={"PYTHONPATH": str(tree / "src")})


def _turn(contender, request, pick):
    return lambda: pick(contender.round(request))


def _about(options):
    log = ["git", "log", "-1", "--format=%h of %as", options.base]
    revision = subprocess.run(log, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    return circumstances(options, f"before: {revision}")


def report(results):
    """Return the section of the page: a table for the cases that were measured together."""
    together = {}
    for name, case in CASES.items():
        if name in results:
            together.setdefault(results[name]["about"], []).append(_row(case, results[name]["found"]))
    head = ["what", "speed, after / before", "before", "after"]
    return {"figures": "\n\n".join(f"{about}\n\n{table(head, rows)}" for about, rows in together.items())}


def _row(case, found):
    shown = ("{:,.0f}", " rows/s") if case.rate else ("{:.2f}", " s")
    ratio = median(found["after"]) / median(found["before"])
    ratio = ratio if case.rate else 1 / ratio
    return [case.title, f"{ratio:.2f}", *(median_and_range(found[name], *shown) for name in ("before", "after"))]


def main():
    """Run the benchmark."""
    parser = command("revisions", __doc__, parts=PARTS, scaled=True)
    parser.add_argument("--base", default="HEAD", help="the older revision")
    run(parser, measure, report)


if __name__ == "__main__":
    main()
