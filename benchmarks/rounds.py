"""Benchmarks side by side: each contender is a process that runs one round whenever it is told to.

The parent lets the contenders take turns, so that whatever else the machine does hits all alike.
"""

import json
import os
import statistics
import subprocess
import sys
from datetime import date
from importlib.metadata import version

_BEGIN, _END = "<!-- figures -->", "<!-- end of figures -->"


def contend(run_round):
    """Run rounds on demand, in a contender's process: a line in, a line with its seconds out."""
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever else is printed must not be taken for an answer
    for line in sys.stdin:
        print(json.dumps(run_round(line.strip())), file=out, flush=True)


class Contender:
    """The parent's handle of a contender."""

    def __init__(self, command, environment, log):
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def round(self, what):
        """Have one round run; return its seconds."""
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"a contender ended in the round {what!r}: see its log")
        return json.loads(answer)

    def close(self):
        """End it."""
        self._process.stdin.close()
        self._process.wait(60)


def results_of(options, measure):
    """Return the results that are kept in a file, with those of a new run unless only a report is wanted of them.

    `measure` takes the options, the results so far, to which it adds, and a log.
    """
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    if not options.report_only:
        with open(options.results.with_suffix(".log"), "ab") as log:
            measure(options, results, log)
    return results


def median_and_range(values, shown="{:.2f}", unit=" s"):
    """Return 'median (lowest to highest)'."""
    median, low, high = (shown.format(each) for each in (statistics.median(values), min(values), max(values)))
    return f"{median}{unit} ({low} to {high})"


def environment(python):
    """Return the environment of a contender; this Python's own packages are no other's."""
    inherited = {name: value for name, value in os.environ.items() if python == sys.executable or name != "PYTHONPATH"}
    return {**inherited, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}


def circumstances(rounds):
    """Return how figures were found."""
    packages = versions("tensorflowonspark", "pyspark", "pyarrow", "tensorflow", "keras")
    return f"{packages}; {os.cpu_count()} cores; median of {rounds} after a warm-up"


def table(head, rows):
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join(lines)


def put_into(page, told):
    """Put a report into a page, in the place of the last one: what stands between two marks."""
    before, rest = page.read_text().split(_BEGIN, 1)
    page.write_text(f"{before}{_BEGIN}\n{told}\n{_END}{rest.split(_END, 1)[1]}")


def share(part):
    """Return a part of one in per cent."""
    return f"{part:.0%}" if part >= 0.1 else f"{part:.1%}"


def versions(*packages):
    """Return the date and the versions that a result was measured with."""
    found = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{date.today().isoformat()}, Python {sys.version.split()[0]}, {found}"
