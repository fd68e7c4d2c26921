"""Two workers that train the same Keras model on a DataFrame in Spark's memory: ours, by hand, and with Ray Train.

Ours are clusters fed by ``train(df)``: Keras 3 on TensorFlow, Keras 3 on JAX, and ``tf_keras``. The others read Parquet
that Spark writes from the DataFrame within the time that is measured: two processes that are started with
``TF_CONFIG``, and the two workers of Ray Train's ``TensorflowTrainer``; both with ``tf_keras``, because Keras 3 by
itself does not train on several hosts with TensorFlow. A worker that takes another number of steps ends the run.
"""

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import version

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances
from benchmarks.common.rounds import ROOT, Contender, python_with, take_turns
from benchmarks.steps.contender import addresses_of
from benchmarks.trainers.report import TITLES, report
from benchmarks.trainers.training import BATCH, LAYERS, spans, steps_of

_RAY = "ray[data,train]==2.60.0"
_PACKAGES = ("tensorflowonspark", "pyspark", "pyarrow", "tensorflow", "keras", "tf_keras", "jax")
_SECONDS = 300  # after which a round is taken for one that hangs


class Bench:
    """The contender with the Spark session, and what starts the others.

    Parameters
    ----------
    stack : contextlib.ExitStack
        Ends the contender, and removes the files.
    log : file
        Receives the standard error of all contenders.
    """

    def __init__(self, stack, log):
        self._log = log
        self._directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="tfos-trainers-"))
        self._spark = stack.enter_context(Contender(["-m", "benchmarks.trainers.from_spark"], log, seconds=_SECONDS))

    def ours(self, request, on):
        """Train with a cluster of ours."""
        return self._spark.round({**request, "on": on})

    def _written(self, request):
        """Write Parquet; return the directory, and when that began and ended."""
        directory = f"{self._directory}/parquet"
        return directory, self._spark.round({**request, "write": directory})

    def _train(self, module, request, python=sys.executable, settings=None):
        """Start a process that trains; return what it finds."""
        arguments = ["-m", f"benchmarks.trainers.{module}"]
        with Contender(arguments, self._log, python, settings=settings, seconds=_SECONDS) as process:
            return process.round(request)

    def by_hand(self, request):
        """Train with two processes that know of each other by ``TF_CONFIG``."""
        directory, times = self._written(request)
        cluster = {"worker": addresses_of(2)}

        def one(rank):
            place = {"cluster": cluster, "task": {"type": "worker", "index": rank}}
            settings = {"TF_CONFIG": json.dumps(place), "TF_USE_LEGACY_KERAS": "1"}
            return self._train("by_hand", {**request, "directory": directory, "rank": rank}, settings=settings)

        with ThreadPoolExecutor(2) as both:
            workers = list(both.map(one, range(2)))
        return {**times, "workers": workers, "returned": time.time()}

    def ray(self, request, python):
        """Train with Ray Train."""
        directory, times = self._written(request)
        # A short path, because sockets lie in it.
        with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as scratch:
            request = {**request, "directory": directory, "scratch": scratch}
            return {**times, **self._train("ray_train", request, python, {"TF_USE_LEGACY_KERAS": "1"})}


def _python_of_ray():
    """Return the Python that has Ray and our versions of the other packages."""
    same = [f"{package}=={version(package)}" for package in ("pyarrow", "tensorflow", "tf_keras")]
    return python_with([_RAY, *same, "pandas"], ROOT / ".venvs/ray-train")


def _ways(bench, parts):
    """Return for each contender a function of the request that trains once, and for the others why there is none."""
    ways = {on: lambda request, on=on: bench.ours(request, on) for on in ("ours", "jax", "tf_keras")}
    ways["hand"] = bench.by_hand
    reasons = {name: "left out on the command line" for name in TITLES if name not in parts}
    if "ray" in parts:
        try:
            python = _python_of_ray()
            ways["ray"] = lambda request: bench.ray(request, python)
        except (OSError, subprocess.CalledProcessError) as error:
            reasons["ray"] = f"{_RAY} can't be installed: {error}"
    return {name: way for name, way in ways.items() if name in parts}, reasons


def measure(options, log):
    """Train each model by each contender, in turn."""
    with ExitStack() as stack:
        bench = Bench(stack, log)
        ways, reasons = _ways(bench, options.parts.split(","))
        for number, model in enumerate(options.models):
            steps = steps_of(model, options.scale)
            request = {"model": model, "rows": steps * BATCH}

            def turn(way, request=request, steps=steps):
                return lambda: spans(way(request), steps)

            # One warm-up is enough: what the rounds share is Spark's, and the same for all models.
            found = take_turns(
                {name: turn(way) for name, way in ways.items()}, options.rounds, model, shown=_shown, warm_up=not number
            )
            about = circumstances(options, *[_RAY] * ("ray" in ways), packages=_PACKAGES)
            yield {model: {"found": found, "steps": steps, "not run": reasons, "about": about}}


def _shown(result):
    shown = {name: f"{result[name]:.2f} s" for name in ("write", "start", "program", "first", "epoch", "whole")}
    return ", ".join(f"{name} {seconds}" for name, seconds in shown.items()) + f", loss {result['loss']:.3f}"


if __name__ == "__main__":
    parser = command("trainers", __doc__, parts=TITLES, scaled=True)
    parser.add_argument("--models", nargs="+", choices=LAYERS, default=[*LAYERS], help="models to train")
    run(parser, measure, report)
