"""A language model in Keras on JAX on one GPU: one plain process, beside the workers of a cluster without Spark.

It needs JAX with its plugin for the GPU, Keras, and neither Spark nor TensorFlow.
"""

import json
import subprocess
import sys
from itertools import pairwise
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances, median_and_range, table
from benchmarks.common.rounds import ROOT
from benchmarks.gpu.model import LENGTH, SIZES
from tensorflowonspark.task.gpus import gpu_names

_CONTENDERS = {
    "one plain process": {"workers": 0, "fed": False},
    "one worker": {"workers": 1, "fed": False},
    "one worker, fed": {"workers": 1, "fed": True},
    "two workers that train alone": {"workers": 2, "fed": False},
}
_EPOCHS = 6  # of which the first, with XLA's compiler, does not count


def _train(wanted, settings, log):
    request = json.dumps({**wanted, "settings": settings, "epochs": _EPOCHS})
    command = [sys.executable, "-m", "benchmarks.gpu.contender", request]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, check=True, timeout=200)
    return json.loads(done.stdout.splitlines()[-1])


def measure(options, log):
    """Train each model by each contender, in turn."""
    found = {}
    for number in range(options.rounds):
        for size, settings in SIZES.items():
            for name in _CONTENDERS if number % 2 else reversed(_CONTENDERS):
                trained = _train(_CONTENDERS[name], settings, log)
                found.setdefault(size, {}).setdefault(name, []).append(trained)
                print(f"round {number + 1}: {size}, {name}: {trained}", file=sys.stderr, flush=True)
                packages = ("jax", "keras", "numpy")  # this package need not be installed
                about = circumstances(options, ", ".join(gpu_names()), packages=packages, warm_up=False)
                yield {"gpu": found, "about": about}


def _speeds(size, trained):
    """Return tokens per second of each epoch after the first, of all workers together, from their moments."""
    tokens = SIZES[size]["batch"] * SIZES[size]["steps"] * LENGTH * len(trained)
    begins = [max(moments) for moments in zip(*(each["moments"] for each in trained), strict=True)]
    return [tokens / (after - before) for before, after in pairwise(begins)]


def report(results):
    """Return the section of the page."""
    rows = []
    for size, found in results["gpu"].items():
        speeds = {
            name: [each for trained in rounds for each in _speeds(size, trained)] for name, rounds in found.items()
        }
        plain = median(speeds["one plain process"])
        for name, rounds in found.items():
            first = median(trained["first"] for workers in rounds for trained in workers)
            losses = {f"{trained['loss']:.3f}" for workers in rounds for trained in workers}
            ratio, speed = f"{median(speeds[name]) / plain:.2f}", median_and_range(speeds[name], "{:,.0f}", "")
            rows.append([size, name, ratio, speed, f"{first:.1f} s", ", ".join(sorted(losses))])
    heads = ["model", "who trains", "ratio", "tokens/s", "first epoch", "loss at the end"]
    return {"gpu": f"{results['about']}\n\n{table(heads, rows)}"}


if __name__ == "__main__":
    run(command("gpu", __doc__, rounds=1), measure, report)
