"""The rungs of the test suite, and the distribution of its tests over processes (a pytest plugin).

The first rung (``make test``, the marker `quick`) holds all of ``tests/unit`` and ``tests/spark`` but the tests marked
`slow`, and of ``tests/cluster`` those marked `smoke`. ``make test-rest`` runs all others.

A Spark session costs up to 20 s, so each process keeps as few of them as possible: the tests of a master stay in one
process, but for those on `local`, whose files are divided so that all processes take equally long. Tests without Spark
go wherever there is time.
"""

from pathlib import Path

import pytest

from tests.support.paths import TESTS

DURATIONS = TESTS / "durations.json"
_UNKNOWN_SECONDS = 1.0
_SESSION_SECONDS = {"local": 4.0, "local-cluster": 12.0, "standalone": 25.0}  # start, first job and end


def pytest_configure(config):
    for line in (
        "masters(*names): run on these Spark masters only; by default on all three",
        "smoke(*names): a test on nodes that `make test` runs, on these masters only; by default on `local`",
        "slow: a test without nodes that `make test` leaves to `make test-rest`; a test on nodes that `make matrix` skips",
        "quick: run by `make test` (set by the test's folder and marks)",
    ):
        config.addinivalue_line("markers", line)


def pytest_addoption(parser):
    parser.addoption("--write-durations", action="store_true", help="write tests/durations.json")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if _is_quick(item):
            item.add_marker(pytest.mark.quick)
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    chosen = config.option.markexpr
    for item, group in _groups(items, processes, chosen).items():
        item.add_marker(pytest.mark.xdist_group(group))


def _is_quick(item):
    folder = Path(item.path).relative_to(TESTS).parts[0]
    if folder in ("unit", "spark"):
        return item.get_closest_marker("slow") is None
    smoke = item.get_closest_marker("smoke")
    return smoke is not None and (_master(item) or "local") in (smoke.args or ("local",))


def _master(item):
    """Return the master of the Spark session that a test is given, or None."""
    return item.callspec.params.get("spark") if hasattr(item, "callspec") else None
