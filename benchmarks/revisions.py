"""Two revisions of the library side by side: whether a change costs a step, a row or a second.

The contenders of the other benchmarks take turns, once with the library of an older revision, which is checked out
beside this one, and once with that of this work tree. Both get the same rows, models and Spark. Rates and times are
compared as medians; the ranges show how much the machine itself varies.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from feed_rows import KINDS
from inference_rows import KINDS as MODELS
from rounds import Contender, circumstances, environment, median_and_range, put_into, results_of, table

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
_PAGE = _ROOT / "docs/benchmarks/revisions.md"
_FEED = {"do": "feed", "kind": "floats", "rows": KINDS["floats"].rows // 2}
_FIT = {"do": "fit", "kind": "floats", "rows": 60_000, "epochs": 4}


@dataclass(frozen=True)
class Case:
    """One figure that both revisions are measured by.

    Parameters
    ----------
    title : str
        What the table calls it.
    script : str
        The contender that measures it.
    order : dict or str
        What the contender is sent.
    pick : callable
        Returns the figure from the contender's answer.
    rate : bool
        Whether more is better: rows per second, not seconds.
    """

    title: str
    script: str
    order: dict | str
    pick: object = float
    rate: bool = False


CASES = {
    "lifecycle": [
        Case("a cluster up and down, detached", "lifecycle_ours.py", "detached"),
        Case("a cluster up and down, held", "lifecycle_ours.py", "held"),
        Case("second cluster of an application, warm nodes", "lifecycle_second.py", "warm"),
    ],
    "feed": [
        Case(
            "784 float32, kept on disk, shuffled",
            "feed_ours.py",
            {**_FEED, "cache": "disk", "shuffle": True},
            rate=True,
        ),
        Case("784 float32, streamed", "feed_ours.py", {**_FEED, "cache": "none", "shuffle": False}, rate=True),
        Case(
            "a later epoch as `tf.data.Dataset`",
            "feed_ours.py",
            {**_FEED, "do": "epochs", "epochs": 4, "dataset": True},
            lambda seconds: median(seconds[1:]),
        ),
        Case(
            "an epoch of `fit`, small model",
            "feed_ours.py",
            {**_FIT, "model": "small"},
            lambda seconds: median(seconds[1:]),
        ),
        Case(
            "an epoch of `fit`, middle model",
            "feed_ours.py",
            {**_FIT, "model": "middle"},
            lambda seconds: median(seconds[1:]),
        ),
    ],
    "inference": [
        Case(
            "`KerasModel.transform`, 64 float32",
            "inference_ours.py",
            {"kind": "small", "road": "ours", "rows": MODELS["small"].rows, "taken": MODELS["small"].rows},
            rate=True,
        ),
    ],
    "recovery": [
        Case(
            "death of a node to the driver's error",
            "recovery_ours.py",
            {"do": "notice", "warm": True},
            lambda answer: answer["noticed"],
        ),
        Case(
            "death of a node to the next step, warm nodes",
            "recovery_ours.py",
            {"do": "recovery", "warm": True},
            lambda answer: answer["all"],
        ),
    ],
}


def measure(options, results, log):
    """Let both revisions take turns in each case."""
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        before = Path(scratch, "before")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(before), options.base], check=True)
        stack.callback(subprocess.run, ["git", "worktree", "remove", "--force", str(before)], check=True)
        for part in options.parts.split(","):
            _measure_part(part, {"before": before, "after": _ROOT}, options, results, log)


def _measure_part(part, trees, options, results, log):
    contenders = {}
    for script in dict.fromkeys(case.script for case in CASES[part]):
        for name, tree in trees.items():
            settings = {**environment(sys.executable), "PYTHONPATH": str(tree / "src")}
            contenders[script, name] = Contender([sys.executable, str(_HERE / script)], settings, log)
        for case in (case for case in CASES[part] if case.script == script):
            found = {name: [] for name in trees}
            order = case.order if isinstance(case.order, str) else json.dumps(case.order)
            for number in range(options.rounds + 1):
                for name in trees if number % 2 else reversed(trees):  # neither is always first
                    figure = case.pick(contenders[script, name].round(order))
                    print(f"round {number}: {case.title}, {name}: {figure:,.3f}", file=sys.stderr, flush=True)
                    if number:  # the first warms up
                        found[name].append(figure)
            results.setdefault("cases", {})[case.title] = found
            results["about"] = f"{circumstances(options.rounds)}; before: {_revision(options.base)}"
            options.results.write_text(json.dumps(results, indent=1))
        for name in trees:
            contenders.pop((script, name)).close()


def _revision(name):
    command = ["git", "log", "-1", "--format=%h of %as", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def report(results):
    """Return the table."""
    rows = []
    for case in (case for cases in CASES.values() for case in cases):
        found = results["cases"].get(case.title)
        if found is None:
            continue
        shown = ("{:,.0f}", " rows/s") if case.rate else ("{:.2f}", " s")
        ratio = median(found["after"]) / median(found["before"])
        ratio = ratio if case.rate else 1 / ratio
        rows.append([case.title, f"{ratio:.2f}", *(median_and_range(found[name], *shown) for name in found)])
    return "\n\n".join([results["about"], table(["what", "speed, after / before", "before", "after"], rows)])


def main():
    """Run the rounds, print the table and put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="HEAD", help="the older revision")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default=",".join(CASES), help="which to run")
    parser.add_argument("--results", type=Path, default=_ROOT / "build/benchmark-revisions.json", help="as JSON")
    parser.add_argument("--report-only", action="store_true", help="of the existing results")
    options = parser.parse_args()
    found = report(results_of(options, measure))
    print(found)
    put_into(_PAGE, found)


if __name__ == "__main__":
    main()
