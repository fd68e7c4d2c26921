"""Contenders: a driver with nodes that other processes play, and a search whose trials are clusters of one node."""

import sys
import time
from contextlib import contextmanager

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import two_slots
from benchmarks.scale.driver import start_and_shut_down
from benchmarks.tune.contenders import rate_of, study


@contextmanager
def played():
    """Yield a function that starts a cluster of so many nodes, and shuts it down."""
    start_and_shut_down(1)  # loads the modules that every driver needs

    def run_round(request):
        found = start_and_shut_down(request["size"])
        up, down = found["up"], found["down"]
        return {"up": up["seconds"], "up cpu": up["cpu"], "memory": up["memory"] / 1e6, "down": down["seconds"]}

    yield run_round


@contextmanager
def trials():
    """Yield a function that runs a search of so many trials, two at a time, whose programs compute one number."""
    import tensorflowonspark as tfos

    with two_slots() as spark:
        quiet = tfos.Logs(log_level="WARNING")

        def objective(trial):
            return tfos.run(spark, lambda rate, ctx: (rate - 1) ** 2, rate_of(trial), logs=quiet).chief

        def run_round(request):
            started = time.monotonic()
            found = tfos.tune(spark, study(), objective, n_trials=request["size"], show_progress_bar=False)
            seconds = time.monotonic() - started
            assert [each.state.name for each in found.trials] == ["COMPLETE"] * request["size"]
            return {"search": seconds, "trial": seconds / request["size"]}

        yield run_round


def main():
    """Serve the rounds of one part."""
    with {"played": played, "trials": trials}[sys.argv[1]]() as run_round:
        serve_rounds(run_round)


if __name__ == "__main__":
    main()
