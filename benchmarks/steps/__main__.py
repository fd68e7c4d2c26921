"""A step of ``fit`` on several workers, beside a loop written by hand in processes that know nothing of this package.

``--python`` names the Pythons of further environments, with other versions of Keras and TensorFlow.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, table, targets
from benchmarks.common.rounds import Contender, take_turns

_MODELS = {
    "small: 64 → 32 → 10, 32 rows per worker": {"width": 32, "depth": 1, "batch": 32, "steps": 200},
    "middle: 64 → 512 (four times) → 10, 128 rows": {"width": 512, "depth": 4, "batch": 128, "steps": 50},
    "large: 64 → 1,024 (six times) → 10, 256 rows": {"width": 1024, "depth": 6, "batch": 256, "steps": 10},
}
_MOST = 1.05


def _versions(python):
    program = "import keras, tensorflow; print(f'Keras {keras.__version__}, TensorFlow {tensorflow.__version__}')"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def _ratios(found):
    return [ours / by_hand for ours, by_hand in zip(found["fit"], found["loop"], strict=True)]


def _worst(results):
    return max(median(_ratios(found)) for found in results["steps"].values())


TARGETS = [
    Target("a step of fit beside one written by hand, the worst of all", _worst, _MOST, "{:.2f}", at_least=False)
]


def measure(options, log):
    """Time the steps of each model with each number of workers, in each environment."""
    found = {}
    for python in (sys.executable, *options.python):
        versions = _versions(python)
        for workers in options.workers:
            for name, settings in _MODELS.items():
                title = f"{versions} | {workers} | {name}"
                with ExitStack() as stack:
                    turns = {}
                    for by in ("fit", "loop"):
                        request = json.dumps({**settings, "workers": workers, "by": by})
                        arguments = ["-m", "benchmarks.steps.contender", request]
                        turns[by] = stack.enter_context(Contender(arguments, log, python)).turn()
                    found[title] = take_turns(turns, options.rounds, title)
    yield {"steps": found, "about": circumstances(options)}


def report(results):
    """Return the sections of the page."""
    rows = []
    for title, found in results["steps"].items():
        ratios = sorted(_ratios(found))
        versions, workers, name = title.split(" | ")
        times = [f"{median(found[by]) * 1e3:.2f} ms" for by in ("fit", "loop")]
        rows.append([versions, workers, name, f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", *times])
    heads = ["versions", "workers", "model", "ratio", "a step of fit", "by hand"]
    return {**targets(TARGETS, results), "steps": f"{results['about']}\n\n{table(heads, rows)}"}


if __name__ == "__main__":
    parser = command("steps", __doc__, rounds=7)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="numbers of workers")
    parser.add_argument("--python", action="append", default=[], help="of a further environment")
    run(parser, measure, report)
