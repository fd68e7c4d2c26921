"""A table of bounded memory that grows, on draws of ids by Zipf's law: memory, AUC and time beside other tables."""

import json
import subprocess
import sys

from benchmarks.common.report import Target
from benchmarks.common.rounds import ROOT
from tests.support.published import table, versions

_IDS, _ROWS, _DRAWS, _LONG = 20_000_000, 1_000_000, 30_000_000, 100_000_000
_FULL = 0.95  # of the rows at the end
_NAMES = {
    "plain": "a row for each of all ids (`rows=20_000_000`)",
    "lru": '`max_rows=1_000_000, evict="lru"`',
    "frequency": '`max_rows=1_000_000, evict="frequency"`',
    "admit": '`max_rows=1_000_000, evict="lru", admit=2`',
    "hash": "hashes (`rows=1_000_000, hash=True`)",
}


def _grown(found):
    """Return by how many MB the memory grew once the table was full; the tenth after it is left out."""
    memory = found["memory"]
    full = next(number for number, (_, _, rows) in enumerate(memory) if rows > _FULL * memory[-1][2])
    return memory[-1][1] - memory[min(full + 1, len(memory) - 2)][1]


TARGETS = [
    Target(
        "10⁸ draws into a table of a million rows: MB that memory grows once it is full",
        lambda results: _grown(results["growing"]["long"]),
        50,
        "{:.0f}",
        at_least=False,
    ),
    Target(
        "AUC of a million rows that grow (the better of lru and frequency), above that of a million hashes",
        lambda results: (
            max(results["growing"][kind]["auc"] for kind in ("lru", "frequency")) - results["growing"]["hash"]["auc"]
        ),
        0.005,
        "{:.4f}",
    ),
]


def measure(options, log):
    """Run one process for each kind of table, one after the other; return their results."""
    ids, rows = int(_IDS * options.scale), int(_ROWS * options.scale)
    runs = {**dict.fromkeys(_NAMES, ("", _DRAWS)), "long": ("lru", _LONG)}
    found = {"about": f"`{options.command}`, {versions('tensorflowonspark', 'tensorflow', 'keras')}"}
    for name, (kind, draws) in runs.items():
        numbers = [str(ids), str(rows), str(int(draws * options.scale))]
        command = [sys.executable, "-m", "benchmarks.parallel.growing_contender", kind or name, *numbers]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def report(results):
    """Return the section of the page."""
    found = results["growing"]
    rows = [
        [
            name,
            f"{found[kind]['auc']:.4f}",
            f"{found[kind]['memory'][-1][2]:,}",
            f"{found[kind]['memory'][-1][1]:,.0f}",
            f"{found[kind]['draws'] / found[kind]['seconds']:,.0f}",
        ]
        for kind, name in _NAMES.items()
    ]
    long = [[f"{drawn:,}", f"{own:,}", f"{size:,.0f}"] for drawn, size, own in found["long"]["memory"]]
    return "\n\n".join(
        [
            f"{found['about']}.",
            f"**AUC**: {found['plain']['draws']:,} draws; the best possible is {found['plain']['best']:.4f}.",
            table(["table", "AUC", "rows at the end", "MB of the process", "ids per second"], rows),
            f'**Memory** with `evict="lru"` and {found["long"]["draws"]:,} draws, '
            f"in {found['long']['seconds']:,.0f} s (AUC {found['long']['auc']:.4f}).",
            table(["draws", "rows", "MB of the process"], long),
        ]
    )
