"""LocalSGD and DiLoCo beside training in step: steps and bytes to an accuracy, slow networks, and killed workers."""

import statistics
import tempfile
import time
from contextlib import closing
from functools import partial
from itertools import pairwise

from benchmarks.common.report import Target, median_and_range
from benchmarks.parallel import killed_workers
from benchmarks.parallel.digits import ENOUGH, Digits, program, steps_to_accuracy
from benchmarks.parallel.throttle import Network
from tests.support.published import table, versions
from tests.support.rounds import Group

WORKERS, EVERY, SEEDS = (2, 4, 8), (1, 5, 20, 50, 100), 3
MEGABITS = (10, 100, 1000)
_THROTTLED = {"workers": 4, "hidden": (256, 256)}
_CONTENDERS = {  # name: steps between rounds, outer optimizer, float16
    "in step": (1, False, False),
    "LocalSGD(every=20)": (20, False, False),
    "DiLoCo(every=20)": (20, True, True),
}
_TIMED_ROUNDS = 20  # of each contender; all take the same time
_KILLS = 20

TARGETS = [
    Target(
        "DiLoCo(every=20), four workers: bytes to 0.95 beside training in step",
        lambda results: results["local_sgd"]["sweep"]["4"]["bytes_ratio"],
        0.1,
        at_least=False,
    ),
    Target(
        "DiLoCo(every=20), four workers: steps to 0.95 beside training in step",
        lambda results: results["local_sgd"]["sweep"]["4"]["steps_ratio"],
        1.0,
        at_least=False,
    ),
    Target(
        "DiLoCo(every=20), four workers at 10 Mbit/s: time to 0.95 beside training in step",
        lambda results: (
            results["local_sgd"]["times"]["10"]["DiLoCo(every=20)"]["seconds"]
            / results["local_sgd"]["times"]["10"]["in step"]["seconds"]
        ),
        0.1,
        at_least=False,
    ),
    Target(
        f"{_KILLS} kills in a training of eight workers: others that are started again",
        lambda results: results["local_sgd"]["kills"]["restarted_others"],
        0,
        shown="{:.0f}",
        at_least=False,
    ),
]


def measure(options, log):
    """Return the figures of all three parts."""
    return {
        "sweep": {str(workers): _sweep(workers) for workers in WORKERS},
        "times": {str(megabits): _times(megabits) for megabits in MEGABITS},
        "kills": _kills(log),
        "circumstances": f"`{options.command}`, {versions('tensorflowonspark', 'numpy', 'pyarrow')}",
    }


# ---- steps and bytes


def _sweep(workers):
    in_step = [steps_to_accuracy(workers, 1, seed, outer=False) for seed in range(SEEDS)]
    found = {"in_step": in_step, "in_step_bytes": _bytes_per_round(workers, outer=False, half=False)}
    for outer in (False, True):
        name = "diloco" if outer else "local_sgd"
        half = outer
        sent = _bytes_per_round(workers, outer=outer, half=half)
        steps = {
            every: [steps_to_accuracy(workers, every, seed, outer=outer) for seed in range(SEEDS)] for every in EVERY
        }
        found[name] = {
            str(every): {
                "steps": each,
                "bytes": sent * statistics.median(each) / every,
                "exchanged": _exchanged(workers, every, outer=outer, half=half),
            }
            for every, each in steps.items()
        }
    bytes_in_step = found["in_step_bytes"] * statistics.median(in_step)
    chosen = found["diloco"]["20"]
    found["bytes_ratio"] = chosen["bytes"] / bytes_in_step
    found["steps_ratio"] = statistics.median(chosen["steps"]) / statistics.median(in_step)
    found["in_step_total"] = bytes_in_step
    return found


def _bytes_per_round(workers, *, outer, half):
    """Return the bytes of weights that a worker sends in a round, by the difference of two trainings."""
    sent = []
    for rounds in (2, 4):
        digits = Digits(workers, seed=0)
        with closing(Group(workers)) as group:
            group.run(program(digits, digits.settings(outer=outer, half=half), 1, rounds=rounds))
            sent.append(sum(member.sent_bytes for member in group.members.values()))
    return (sent[1] - sent[0]) / 2 / workers


def _exchanged(workers, every, *, outer, half):
    """Return the steps of the first seed to the accuracy, with the real exchange."""
    if every == 1:
        return None  # hundreds of rounds, and nothing that the others don't show
    digits = Digits(workers, seed=0)
    with closing(Group(workers)) as group:
        results = group.run(program(digits, digits.settings(outer=outer, half=half), every))
    (steps,) = {steps for steps, _ in results.values()}
    return steps


# ---- slow networks


def _times(megabits):
    workers, hidden = _THROTTLED["workers"], _THROTTLED["hidden"]
    found = {}
    for name, (every, outer, half) in _CONTENDERS.items():
        steps = [steps_to_accuracy(workers, every, seed, outer=outer, hidden=hidden) for seed in range(SEEDS)]
        digits = Digits(workers, 0, hidden)
        settings = digits.settings(outer=outer, half=half)
        with closing(Network(megabits)) as network, closing(Group(workers)) as group:
            seconds = _seconds_per_round(group, network, partial(program, digits, settings, every))
        rounds = statistics.median(steps) / every
        found[name] = {"per_round": seconds, "rounds": rounds, "seconds": seconds * rounds}
    return found


def _seconds_per_round(group, network, make):
    """Return the median of some rounds, after the first ones, which start servers and connections."""
    times = []
    run = make(rounds=_TIMED_ROUNDS + 3, on_round=lambda: times.append(time.monotonic()))

    def throttled(member):
        network.attach(member)
        return run(member)

    group.run(throttled)
    return statistics.median(later - earlier for earlier, later in pairwise(times[2:]))


# ---- killed workers


def _kills(log):
    with tempfile.TemporaryDirectory() as directory:
        return killed_workers.measure(max(WORKERS), _KILLS, directory, log)


# ---- the report


def report(results):
    """Return the section of the page."""
    found = results["local_sgd"]
    return "\n\n".join(
        [
            f"{found['circumstances']}; two cores, beside other work.",
            "**Steps and bytes to 0.95** on 360 held-out digits: network of 64-64-10 (4,810 weights), batch 16 per "
            f"worker, SGD 0.1 inside, medians of {SEEDS} seeds. In each cell: steps of each worker with `LocalSGD` / "
            "with `DiLoCo`, and the kilobytes that each sends.",
            _steps_table(found["sweep"]),
            _check(found["sweep"]),
            "**Time to 0.95 on a slow network**: four workers, network of 64-256-256-10 (85,002 weights), the traffic "
            "of each worker held to a rate in each direction by a token bucket. Training in step sends float32 after "
            f"each step, as many bytes as a ring all-reduce. The median time of {_TIMED_ROUNDS} rounds (in brackets, "
            f"with the steps between them), times the rounds that the accuracy needs (median of {SEEDS} seeds).",
            _times_table(found["times"]),
            _kills_text(found["kills"]),
        ]
    )


def _steps_table(sweep):
    rows = []
    for workers, found in sweep.items():
        cells = [f"{statistics.median(found['in_step']):.0f}, {found['in_step_total'] / 1e3:,.0f} kB"]
        for every in EVERY:
            pair = [found[name][str(every)] for name in ("local_sgd", "diloco")]
            steps = " / ".join(f"{statistics.median(each['steps']):.0f}" for each in pair)
            sent = " / ".join(f"{each['bytes'] / 1e3:,.0f}" for each in pair)
            cells.append(f"{steps}, {sent} kB")
        rows.append([workers, *cells])
    return table(["workers", "in step", *(f"every {every}" for every in EVERY)], rows)


def _check(sweep):
    same = total = 0
    for found in sweep.values():
        for name in ("local_sgd", "diloco"):
            for each in found[name].values():
                if each["exchanged"] is not None:
                    total += 1
                    same += each["exchanged"] == each["steps"][0]
    return (
        f"The seeds were trained in one process; in {total} trainings of the first one (all but every 1) the workers "
        f"were threads with servers of their own, and exchanged their weights (DiLoCo as float16): {same} of them "
        "needed as many steps as without the exchange."
    )


def _times_table(times):
    rows = []
    for name in _CONTENDERS:
        cells = [times[str(rate)][name] for rate in MEGABITS]
        shown = [f"{each['seconds']:.1f} s ({1e3 * each['per_round']:.0f} ms)" for each in cells]
        rows.append([name, *shown, f"{cells[0]['rounds']:.0f}"])
    return table(["", *(f"{rate} Mbit/s" for rate in MEGABITS), "rounds"], rows)


def _kills_text(found):
    return (
        f"**{found['kills']} kills** in a training of {found['workers']} workers (processes with `DiLoCo(every=20)`; "
        f"each is started again at once, and joins): {found['rounds']} rounds, of which {found['begun_again']} began "
        "again without a worker that died in their midst, and none was lost. From a kill to the next complete round: "
        f"{median_and_range(found['pauses'])}; between two rounds without a kill: "
        f"{median_and_range(found['undisturbed'])}. {found['joined']} times a worker that was started again took the "
        f"newest weights; {found['restarted_others']} others were started again. At the end all weights were "
        f"{'equal bit for bit' if found['equal'] else 'NOT equal'}, with {found['accuracy']:.3f} on held-out digits "
        f"(enough: {ENOUGH})."
    )
