"""Keras 3 on TensorFlow and on JAX: the same model, seed and feed on two workers.

Both begin with the same weights, which NumPy draws, and take the same rows in the same steps. ``digits`` is the
convolutional network of the demo without Dropout, whose draws differ between backends: accuracy and loss after each
epoch. ``dense`` is a larger network on made rows: rows per second.
"""

import statistics
from itertools import count

from benchmarks.common.report import Target, circumstances, median_and_range
from benchmarks.common.rounds import Contender, take_turns
from tests.support.published import table

_MODULE = "benchmarks.parallel.backends_contender"
_BACKENDS = ("tensorflow", "jax")
_ROUNDS = 3
_EPOCHS = {"digits": 8, "dense": 4}
_ROWS = 12_800  # of the larger network


def _accuracy(results, backend):
    return statistics.median(each["accuracy"] for each in results["backends"]["digits"][backend])


def _speed(results, part, backend):
    return statistics.median(each["rows_per_second"] for each in results["backends"][part][backend])


TARGETS = [
    Target(
        "accuracy on JAX after the epochs of digits, below that on TensorFlow (median of seeds)",
        lambda results: _accuracy(results, "tensorflow") - _accuracy(results, "jax"),
        0.01,
        "{:.3f}",
        at_least=False,
    ),
    Target(
        "rows per second on JAX, of those on TensorFlow, for the larger network",
        lambda results: _speed(results, "dense", "jax") / _speed(results, "dense", "tensorflow"),
        0.8,
    ),
]


def measure(options, log):
    """Train with each backend in turn, with another seed in each round."""
    found = {}
    rows = max(1_024, int(_ROWS * options.scale))
    with Contender(["-m", _MODULE], log) as contender:
        for part, epochs in _EPOCHS.items():
            seeds = {backend: count() for backend in _BACKENDS}

            def turn(backend, part=part, epochs=epochs, seeds=seeds):
                request = {"part": part, "backend": backend, "rows": rows, "epochs": epochs}
                return lambda: contender.round({**request, "seed": next(seeds[backend])})

            turns = {backend: turn(backend) for backend in _BACKENDS}
            rounds = min(options.rounds, _ROUNDS)
            found[part] = take_turns(turns, rounds, part, shown=_shown, warm_up=False)
    return {**found, "circumstances": circumstances(options, packages=_PACKAGES, warm_up=False)}


_PACKAGES = ("tensorflowonspark", "pyspark", "tensorflow", "jax", "keras")


def _shown(result):
    return f"{result['rows_per_second']:,.0f} rows/s, accuracy {result['accuracy']:.3f}"


def report(results):
    """Return the section of the page."""
    found = results["backends"]
    rows = []
    for part, title in (("digits", "network of the demo, 1,437 digits"), ("dense", "784-1024-1024-10, made rows")):
        for backend in _BACKENDS:
            rounds = found[part][backend]
            rows.append(
                [
                    title,
                    backend,
                    median_and_range([each["accuracy"] for each in rounds], "{:.3f}", ""),
                    median_and_range([each["rows_per_second"] for each in rounds], "{:,.0f}", ""),
                    median_and_range([each["seconds"] for each in rounds], "{:.1f}"),
                ]
            )
    differences = [
        max(abs(mine - its) for mine, its in zip(one["losses"], two["losses"], strict=True))
        for one, two in zip(found["digits"]["tensorflow"], found["digits"]["jax"], strict=True)
    ]
    head = ["model", "backend", "accuracy", "rows per second", "from the start of the nodes"]
    return (
        f"{found['circumstances']}\n\n{table(head, rows)}\n\nThe losses of the epochs of digits differ by at most "
        f"{max(differences):.1e} between the backends. Accuracy is on rows that were held out (of the made rows on "
        "those that it trains on); rows per second are of the epochs from the second on, both workers together."
    )
