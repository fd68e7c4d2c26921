"""The page for users, written from what the cells have come to."""

import re
from collections import Counter

from tests.support.keras_table.cells import ALL
from tests.support.keras_table.columns import COLUMNS
from tests.support.keras_table.judging import DIFFERENT, EQUAL, NOT_RUN, NOTHING, REFUSED, WRONG

_INTRODUCTION = """# What works with Keras and tf.data

A test makes this page. It runs each program of the tables below under each strategy, compares it with plain Keras in
one process that has the same rows in the same steps, and fails if a cell is not what this page says.

## Before you begin

- **What works.** A model that trains with `fit` in one process trains under `MultiWorkerMirroredStrategy` to the same
  weights, history and metrics. Rows that fill up a worker's batches count in no loss and in no metric.
- **What is refused** raises an error before the first step. The error names what can't be had, and what to do instead.
- **What differs** differs in Keras or TensorFlow itself; each such cell has its reason. Know these four:
  `BatchNormalization` normalizes by replica (with `synchronized=True` it does not); layers that draw numbers draw
  others on each replica; losses of a batch as a whole are those of each replica's part of it; arrays that a program
  makes of its fed rows are divided among the workers once more.
- **Keras 3 under `ParameterServerStrategy`** trains in loops of your own (`ClusterCoordinator`), not with `fit`.
  `tf_keras` has both (`environment={"TF_USE_LEGACY_KERAS": "1"}`). Schedule as many steps as there are batches: one
  that finds no more rows still does what needs none, such as weight decay.
- **Datasets.** Any transformation may come after `ctx.dataset(...)`. A batch that comes out is one worker's share, so
  `unbatch().batch(8)` on two workers makes steps of 16 rows. `take`, `skip`, `shard` and `repeat` count batches on
  each worker. `predict` gives each worker the predictions of its own rows.
"""

_LEGEND = """## How to read the tables

| cell | |
|---|---|
| ✓ | equal to one process: weights, history, metrics, predictions; of datasets, the rows that reach a step |
| refused | an error before the first step; the number leads to its text |
| differs | a difference of Keras's own; the number leads to its reason |
| — | not applicable |

`MultiWorkerMirrored` is two nodes with one device each, `Mirrored` one node with two devices, `no strategy` one node,
and `ParameterServer` a chief, a server and a worker. All rows come from a DataFrame. Each training has a short last
batch; of the rows to evaluate on, one worker has 7 and the other 24.
"""


def page(verdicts, versions):
    """Return the page for the cells' verdicts, by key and column."""
    reasons = {}

    def mark(verdict):
        if verdict.kind == EQUAL:
            return "✓"
        if verdict.kind in (NOTHING, NOT_RUN):
            return verdict.kind
        number = reasons.setdefault((verdict.kind, verdict.why), len(reasons) + 1)
        return {REFUSED: "refused", DIFFERENT: "differs", WRONG: "WRONG"}[verdict.kind] + f" [{number}](#reasons)"

    tables = []
    groups = {}
    for key, cell in ALL.items():
        groups.setdefault(cell.group, []).append((key, cell))
    for group, members in sorted(groups.items(), key=lambda each: _ORDER.index(each[0])):
        lines = [f"### {group}", "", f"| | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
        for key, cell in members:
            marks = [mark(verdicts[key, column]) for column in COLUMNS]
            lines.append(f"| {_escaped(cell.name)} | {' | '.join(marks)} |")
        tables.append("\n".join(lines))
    counts = {column: Counter(verdicts[key, column].kind for key in ALL) for column in COLUMNS}
    kinds = (EQUAL, REFUSED, DIFFERENT, WRONG)
    total = ["| | equal | refused | different | wrong |", "|---|---|---|---|---|"]
    total += [f"| {column} | {' | '.join(str(counts[column][kind]) for kind in kinds)} |" for column in COLUMNS]
    notes = [f"{number}. {kind}: {_escaped(why)}" for (kind, why), number in reasons.items()]
    parts = [_INTRODUCTION, "## Counts", "\n".join(total), f"{versions_line(versions)}", _LEGEND, "## Tables", *tables]
    return "\n\n".join(part.strip() for part in [*parts, "## Reasons", "\n".join(notes)]) + "\n"


_ORDER = (
    "Optimizers",
    "Options of optimizers",
    "Schedules",
    "Losses",
    "Metrics",
    "Layers",
    "Models",
    "fit",
    "evaluate",
    "predict",
    "on a batch",
    "Callbacks",
    "tf.data",
)


def marks(text):
    """Return what stands in each cell of a page, without its number, by group, name and column."""
    found, group = {}, ""
    for line in text.splitlines():
        if line.startswith("### "):
            group = line.removeprefix("### ")
        elif group and line.startswith("| ") and not line.startswith("| |"):
            name, *each = [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]
            found |= {(group, name, column): mark.split(" [")[0] for column, mark in zip(COLUMNS, each, strict=True)}
    return found


def versions_line(versions):
    """Return the line that says what the page was made with."""
    return "Made with " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."


def _escaped(text):
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_")
