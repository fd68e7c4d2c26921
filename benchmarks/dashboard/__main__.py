"""The cost of the dashboard: bytes per second of an open page, and the driver's processor time with and without one.

The nodes are played by other processes (`benchmarks.scale`) and send what those of a training send; the pages are other
processes too, which read as a browser does.
"""

from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import Target, circumstances, median_and_range, table, targets
from benchmarks.common.rounds import Contender, take_turns

_PAGES = [0, 1, 10]
_LARGEST = 1000


def _share(rounds, pages):
    """Return the percentages of one core that the driver uses with some pages open."""
    return [100 * each[str(pages)]["cpu"] for each in rounds]


def _more(rounds, pages):
    """Return the percentages of one core that open pages add."""
    return [with_pages - without for with_pages, without in zip(_share(rounds, pages), _share(rounds, 0), strict=True)]


def _bytes(rounds, name):
    return [each["bytes"][name] for each in rounds]


TARGETS = [
    Target(
        "1,000 nodes: bytes per second of an open page",
        lambda results: median(_bytes(results["nodes"][str(_LARGEST)], "per second")),
        10_000,
        "{:,.0f}",
        at_least=False,
    ),
    Target(
        "1,000 nodes: one core's share that an open page adds",
        lambda results: median(_more(results["nodes"][str(_LARGEST)], 1)),
        2.0,
        "{:.1f} %",
        at_least=False,
    ),
]


def measure(options, log):
    """Run the rounds; each has a new driver."""

    def turn(count):
        def once():
            with Contender(["-m", "benchmarks.dashboard.contenders"], log) as driver:
                return driver.round({"nodes": count, "pages": _PAGES, "seconds": options.seconds})

        return once

    turns = {str(count): turn(count) for count in options.nodes}
    found = take_turns(turns, options.rounds, "nodes", shown=_summary, warm_up=False)
    about = circumstances(options, f"{options.seconds} s each", packages=("tensorflowonspark",), warm_up=False)
    yield {"about": about, "nodes": found}


def _summary(found):
    shares = ", ".join(f"{pages} pages {100 * found[str(pages)]['cpu']:.1f} %" for pages in _PAGES)
    return f"{shares}, {found['bytes']['per second']:,.0f} bytes/s"


def report(results):
    """Return the sections of the page."""
    rounds = {int(count): of for count, of in results["nodes"].items()}
    numbers = sorted(rounds)
    rows = [
        [
            "bytes per second of an open page",
            *[median_and_range(_bytes(rounds[each], "per second"), "{:,.0f}", "") for each in numbers],
        ],
        ["bytes of the first state", *[f"{median(_bytes(rounds[each], 'state')):,.0f}" for each in numbers]],
        ["bytes of the page itself", *[f"{median(_bytes(rounds[each], 'page')):,.0f}" for each in numbers]],
        *[
            [
                f"one core's share of the driver, {pages} open page{'s' if pages != 1 else ''}",
                *[median_and_range(_share(rounds[each], pages), "{:.1f}", " %") for each in numbers],
            ]
            for pages in _PAGES
        ],
    ]
    found = targets(TARGETS, results) if _LARGEST in rounds else {}
    return {**found, "figures": f"{results['about']}\n\n{table(['nodes', *[f'{each:,}' for each in numbers]], rows)}"}


def main():
    """Run the benchmark."""
    parser = command("dashboard", __doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 100, 1000])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (default: %(default)s)")
    run(parser, measure, report)


if __name__ == "__main__":
    main()
