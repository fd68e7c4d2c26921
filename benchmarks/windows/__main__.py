"""Windows of ordered rows that the workers make, beside windows that Spark's SQL makes."""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, ratios, table, targets
from benchmarks.common.rounds import Contender, take_turns

_WAYS = {
    "nodes": '`window=tfos.Window("store", "day", length=56, horizon=7)`',
    "sql": "`collect_list` over a window of Spark's SQL",
}
_STORES, _DAYS = 400, 730


def _bytes(results):
    first = {name: found[0] for name, found in results["rounds"].items()}
    return first["sql"]["sent"] / first["nodes"]["sent"]


TARGETS = [
    Target("bytes that are sent with windows of Spark's SQL, of those with `window`", _bytes, 10, "{:.0f} times"),
    Target(
        "seconds from `cluster.train` to the end of one epoch, of those with `window`",
        lambda results: median(ratios(results["rounds"], "sql", "nodes", "seconds")),
        1.0,
        "{:.1f} times",
    ),
]


def measure(options, log):
    """Run the rounds."""
    with Contender(["-m", "benchmarks.windows.contender"], log) as ours:
        size = {"stores": max(2, int(_STORES * options.scale)), "days": _DAYS}
        turns = {way: ours.turn(way=way, **size) for way in _WAYS}
        packages = ("tensorflowonspark", "pyspark", "pyarrow")
        found = take_turns(turns, options.rounds, f"{size['stores'] * _DAYS:,} rows", shown=_shown)
        yield {"rounds": found, "rows": size["stores"] * _DAYS, "about": circumstances(options, packages=packages)}


def _shown(found):
    size = f"{found['windows']:,} windows, {found['sent'] / 1e6:.1f} MB"
    return f"{size}: {found['seconds']:.1f} s, an epoch {found['epoch']:.2f} s"


def report(results):
    """Return the sections of the page."""
    rows = [
        [
            title,
            f"{found[0]['windows']:,}",
            f"{found[0]['sent'] / 1e6:.1f} MB",
            median_and_range([each["seconds"] for each in found], "{:.1f}"),
            median_and_range([each["epoch"] for each in found], "{:.2f}"),
            f"{median(each['windows'] / each['epoch'] for each in found):,.0f}",
        ]
        for title, found in ((_WAYS[name], results["rounds"][name]) for name in _WAYS)
    ]
    head = [
        "windows by",
        f"windows of {results['rows']:,} rows",
        "sent",
        "to the end of an epoch",
        "an epoch",
        "windows/s",
    ]
    return {**targets(TARGETS, results), "ways": f"{results['about']}\n\n{table(head, rows)}"}


if __name__ == "__main__":
    run(command("windows", __doc__, scaled=True), measure, report)
