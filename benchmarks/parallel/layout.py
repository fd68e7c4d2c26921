"""``ctx.layout("fsdp")``: the memory that a worker adds, and a limit that one process can't train within."""

import sys

from benchmarks.common.report import Target, versions
from benchmarks.common.rounds import Contender
from benchmarks.parallel.layout_contender import ELEMENTS
from tests.support.published import table

_LIMIT_MB = 700
_ROUNDS = {  # by name: layout, workers, limit
    "one process": ("", 1, 0),
    "`fsdp`, two workers": ("fsdp", 2, 0),
    "one process, limited": ("", 1, _LIMIT_MB),
    "`fsdp`, two workers, limited": ("fsdp", 2, _LIMIT_MB),
}


def _trains_on_two_alone(results):
    found = results["layout"]["found"]
    return float("error" in found["one process, limited"] and "losses" in found["`fsdp`, two workers, limited"])


TARGETS = [
    Target("a model whose weights and slots no worker could hold trains on two (1: yes)", _trains_on_two_alone, 1)
]


def measure(options, log):
    """Train in each way once: memory and losses don't depend on other work."""
    found = {}
    with Contender(["-m", "benchmarks.parallel.layout_contender"], log) as contender:
        for name, (kind, workers, limit) in _ROUNDS.items():
            found[name] = contender.round({"kind": kind, "workers": workers, "limit_mb": limit})
            print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return {"about": f"`{options.command}`, {versions('tensorflowonspark', 'jax', 'keras')}", "found": found}


def report(results):
    """Return the section of the page."""
    about, found = results["layout"]["about"], results["layout"]["found"]
    rows = [
        [name, f"{each['memory']:,.0f}" if "memory" in each else "out of memory", _last(each)]
        for name, each in found.items()
    ]
    head = ["", "MiB that a process adds at most", "loss of the last epoch"]
    return (
        f"{about}. Weights and slots of the two large kernels are {ELEMENTS * 4 / 2**20:,.0f} MiB; a limited process "
        f"may add {_LIMIT_MB} MiB (`RLIMIT_DATA`).\n\n{table(head, rows)}"
    )


def _last(each):
    return f"{each['losses'][-1]:.5f}" if "losses" in each else ""
