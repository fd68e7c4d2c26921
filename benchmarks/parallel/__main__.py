"""Other kinds of parallel training beside synchronous data parallelism: time, bytes, memory, and what is learned.

Each part is a module of this folder, with ``TARGETS``, ``measure(options, log)`` and ``report(results)``.
"""

from importlib import import_module

from benchmarks.common.command import command, run
from benchmarks.common.report import targets

PARTS = ("embedding", "growing", "backends", "local_sgd", "layout")


def _module(part):
    return import_module(f"benchmarks.parallel.{part}")


def measure(options, log):
    """Run the parts that the command line names."""
    for part in options.parts.split(","):
        yield {part: _module(part).measure(options, log)}


def report(results):
    """Return the sections of the page."""
    modules = {part: _module(part) for part in PARTS if part in results}
    every = [target for module in modules.values() for target in module.TARGETS]
    return {**targets(every, results), **{part: module.report(results) for part, module in modules.items()}}


if __name__ == "__main__":
    run(command("parallel", __doc__, parts=PARTS, scaled=True), measure, report)
