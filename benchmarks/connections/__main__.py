"""Connections between processes: the transport of two revisions side by side, on one host.

Each round measures, over a port, over TLS and over a Unix socket: a message and its answer, a new connection with a
message, rows in large and small batches, a part of a feed, batches that are answered; and what a supervisor weighs.
"""

import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances, median_and_range, table
from benchmarks.common.rounds import ROOT, Contender, take_turns

_WAYS = {"tcp": "a port", "tls": "a port with TLS", "unix": "a Unix socket"}
_FIGURES = {  # title, format, unit, and whether more is better
    "message": ("a message and its answer", "{:,.0f}", " µs", False),
    "connect": ("a connection, with a message and its answer", "{:.2f}", " ms", False),
    "part": ("a part of 200 kB, to its acknowledgement", "{:,.0f}", " µs", False),
    "rows": ("rows in batches of 31 MB", "{:,.0f}", " MB/s", True),
    "small": ("rows in batches of 200 kB", "{:,.0f}", " MB/s", True),
    "answers": ("batches of 3 MB that are sent back", "{:,.0f}", " MB/s", True),
    "megabytes": ("memory of a supervisor's process after its imports", "{:.0f}", " MB", False),
    "seconds": ("processor time of these imports", "{:.2f}", " s", False),
}


def measure(options, log):
    """Run the rounds of each way, both revisions in turn."""
    with ExitStack() as stack:
        before = Path(stack.enter_context(tempfile.TemporaryDirectory()), "before")
        add = ["git", "worktree", "add", "--quiet", "--detach", str(before), options.base]
        subprocess.run(add, check=True, cwd=ROOT)
        stack.callback(subprocess.run, ["git", "worktree", "remove", "--force", str(before)], check=True, cwd=ROOT)
        contenders = {
            name: stack.enter_context(
                Contender(
                    ["-m", "benchmarks.connections.contender"], log, settings={"PYTHONPATH": f"{tree / 'src'}:{ROOT}"}
                )
            )
            for name, tree in {"before": before, "after": ROOT}.items()
        }
        about = circumstances(options, f"before: {options.base}", packages=("tensorflowonspark", "pyarrow"))
        for way in (*_WAYS, "supervisor"):
            turns = {name: each.turn(way=way) for name, each in contenders.items()}
            yield {"about": about, way: take_turns(turns, options.rounds, way, shown=str)}


def report(results):
    """Return the sections of the page."""
    rows = []
    for way in (*_WAYS, "supervisor"):
        found = results.get(way, {"after": [{}]})
        for name in found["after"][0]:
            title, shown, unit, more = _FIGURES[name]
            old, new = ([each[name] for each in found[revision]] for revision in ("before", "after"))
            ratio = median(new) / median(old) if more else median(old) / median(new)
            place = _WAYS.get(way, "")
            texts = (median_and_range(each, shown, unit) for each in (old, new))
            rows.append([place, title, f"{ratio:.2f}", *texts])
    head = ["over", "what", "times better", "before", "after"]
    return {"figures": f"{results['about']}\n\n{table(head, rows)}"}


if __name__ == "__main__":
    parser = command("connections", __doc__)
    parser.add_argument("--base", default="cc48831", help="the older revision: by default the last one with Flight")
    run(parser, measure, report)
