"""A step of ``fit`` on several workers, and the begin of its epoch, beside processes without this package.

Those are Keras 3's ``fit`` with what fails under the strategy repaired by hand, a loop written by hand, and tf_keras's
own ``fit``.

``--python`` names the Pythons of further environments, with other versions of Keras and TensorFlow.
"""

import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, ratios, table, targets
from benchmarks.common.rounds import Contender, take_turns

_MODELS = {
    "small: 64 → 32 → 10, 32 rows per worker": {"width": 32, "depth": 1, "batch": 32, "steps": 200},
    "middle: 64 → 512 (four times) → 10, 128 rows": {"width": 512, "depth": 4, "batch": 128, "steps": 50},
    "large: 64 → 1,024 (six times) → 10, 256 rows": {"width": 1024, "depth": 6, "batch": 256, "steps": 10},
}
_ALONE = [("fit", "fit repaired by hand"), ("tf_keras: fit", "tf_keras: fit alone")]
_BY_HAND = [("fit", "a loop by hand")]
_PAIRS = [*_ALONE, *_BY_HAND]


def _versions(python):
    program = "import keras, tensorflow; print(f'Keras {keras.__version__}, TensorFlow {tensorflow.__version__}')"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def _time(rounds, name):
    return f"{median(each[name] for each in rounds) * 1e3:.2f} ms"


def _worst(pairs):
    """Return a function from results to the worst ratio of these pairs with several workers."""

    def worst(results):
        several = [found for title, found in results["steps"].items() if title.split(" | ")[1] != "1"]
        return max(median(ratios(found, *pair, "step")) for found in several for pair in pairs)

    return worst


def _shown(result):
    return f"{result['step'] * 1e3:.2f} ms, begin {result['begin'] * 1e3:.0f} ms"


TARGETS = [
    Target(f"several workers: a step of fit beside {name}", _worst(pairs), most, "{:.2f}", at_least=False)
    for name, pairs, most in [
        ("the same fit without this package, the worst", _ALONE, 1.02),
        ("a loop written by hand, the worst", _BY_HAND, 1.05),
    ]
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
                    scratch = {"TMPDIR": stack.enter_context(tempfile.TemporaryDirectory())}
                    turns = {}
                    for by in dict.fromkeys(name for pair in _PAIRS for name in pair):
                        request = json.dumps({**settings, "workers": workers, "by": by})
                        arguments = ["-m", "benchmarks.steps.contender", request]
                        turns[by] = stack.enter_context(Contender(arguments, log, python, settings=scratch)).turn()
                    found[title] = take_turns(turns, options.rounds, title, shown=_shown)
    yield {"steps": found, "about": circumstances(options)}


def report(results):
    """Return the sections of the page."""
    rows = []
    for title, found in results["steps"].items():
        versions, workers, name = title.split(" | ")
        for ours, other in _PAIRS:
            of_rounds = sorted(ratios(found, ours, other, "step"))
            ratio = f"{median(of_rounds):.2f} ({of_rounds[0]:.2f} to {of_rounds[-1]:.2f})"
            here, beside = ([by, _time(found[by], "step"), _time(found[by], "begin")] for by in (ours, other))
            rows.append([versions, workers, name, *here, *beside, ratio])
    times = ["a step", "the begin of an epoch"]
    heads = ["versions", "workers", "model", "here", *times, "beside", *times, "steps, ratio"]
    return {**targets(TARGETS, results), "steps": f"{results['about']}\n\n{table(heads, rows)}"}


if __name__ == "__main__":
    parser = command("steps", __doc__, rounds=11)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers")
    parser.add_argument("--python", action="append", default=[], help="of a further environment")
    run(parser, measure, report)
