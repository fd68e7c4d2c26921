"""How long a step stands still that saves to a slow store, waited for and beside; how long a restore takes."""

import statistics
from contextlib import ExitStack

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import Contender, take_turns

_CASES = {
    "waits": "`ctx.checkpoint(directory, wait=True)`",
    "beside": "`ctx.checkpoint(directory)`",
    "orbax": "Orbax's `AsyncCheckpointer`, to this machine's disk",
}
_RESTORES = {
    "directory": "the checkpoints' directory, on this machine's disk",
    "own": "the copy on the executor's own disk",
    "neighbour": "the copy of another host, over a connection",
}
_BACKENDS = {"tensorflow": ("waits", "beside"), "jax": ("waits", "beside", "orbax")}


def _values(results, backend, how, what):
    return [each[what] for each in results[backend][how]]


def _stall(backend):
    def measure(results):
        medians = (statistics.median(_values(results, backend, how, "stall")) for how in ("beside", "waits"))
        return next(medians) / next(medians)

    return measure


def _memory(backend):
    """Return the memory of a save beside the training, less that of one that is waited for, in copies of the state."""

    def measure(results):
        medians = {how: statistics.median(_values(results, backend, how, "memory")) for how in ("beside", "waits")}
        size = statistics.median(_values(results, backend, "beside", "size"))
        return max(0.0, medians["beside"] - medians["waits"]) / size

    return measure


def _targets(backend, name):
    stall = "a step that saves, beside one that waits for the store"
    memory = "memory beyond that of a step that waits, in copies of the state"
    return [
        Target(f"{name}: {stall}", _stall(backend), 0.05, "{:.3f} times", at_least=False),
        Target(f"{name}: {memory}", _memory(backend), 1.0, "{:.2f}", at_least=False),
    ]


TARGETS = [*_targets("tensorflow", "TensorFlow"), *_targets("jax", "JAX")]


def measure(options, log):
    """Let the ways to save take turns."""
    for backend, cases in _BACKENDS.items():
        if backend in options.parts.split(","):
            program, sizes = (
                ["-m", "benchmarks.checkpoints.contender", backend],
                [str(options.megabytes), str(options.speed)],
            )
            with ExitStack() as stack:
                turns = {}
                for how in cases:
                    turns[how] = stack.enter_context(Contender([*program, how, *sizes], log)).turn()
                found = take_turns(turns, options.rounds, backend, shown=str)
            yield {backend: {**found, "about": circumstances(options, f"{options.megabytes} MB of weights")}}
    if "restore" in options.parts.split(","):
        with Contender(["-m", "benchmarks.checkpoints.restoring", str(options.megabytes)], log) as contender:
            turns = {how: contender.turn(how=how) for how in _RESTORES}
            found = take_turns(turns, options.rounds, "restore", shown=str)
        yield {"restore": {**found, "about": circumstances(options, f"{options.megabytes} MB of weights")}}


def report(results):
    """Return the sections of the page."""
    sections = {**targets(TARGETS, results)}
    heads = ["way", "the step stands still", "until it is complete", "memory"]
    for backend, cases in _BACKENDS.items():
        if backend in results:
            rows = [
                [
                    _CASES[how],
                    median_and_range(_values(results, backend, how, "stall")),
                    median_and_range(_values(results, backend, how, "whole"), "{:.1f}"),
                    median_and_range(_values(results, backend, how, "memory"), "{:.0f}", " MB"),
                ]
                for how in cases
            ]
            sections[backend] = f"{results[backend]['about']}\n\n{table(heads, rows)}"
    if "restore" in results:
        seconds = {how: _values(results, "restore", how, "seconds") for how in _RESTORES}
        rows = []
        for how, found in seconds.items():
            ratios = [own / disk for own, disk in zip(found, seconds["directory"], strict=True)]
            rows.append([_RESTORES[how], median_and_range(ratios, "{:.2f}", ""), median_and_range(found)])
        heads = ["from", "beside the directory", "restored in"]
        sections["restore"] = f"{results['restore']['about']}\n\n{table(heads, rows)}"
    return sections


if __name__ == "__main__":
    parser = command("checkpoints", __doc__, parts=[*_BACKENDS, "restore"])
    parser.add_argument("--megabytes", type=int, default=500, help="of weights; Adam has twice as many beside")
    parser.add_argument("--speed", type=int, default=50, help="of the store, in megabytes per second")
    run(parser, measure, report)
