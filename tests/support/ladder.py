"""The rungs of the test suite, and how its tests are divided among processes: a pytest plugin.

The first rung (``make test``, the marker `quick`) holds the tests in ``tests/unit`` but those marked `deep`, and of the
other folders those marked `smoke`, on the master `local`, but for what is marked `slow`. ``make test-hosts`` runs those
in ``tests/hosts``, ``make test-kubernetes`` those in ``tests/kubernetes``, and ``make test-rest`` all others; of those
marked `slow` CI runs a tenth with each commit (``TFOS_TEST_TURN``). Of ``make matrix-oldest`` it runs a tenth of the
others (``TFOS_TEST_TURN_OF=all``). ``TFOS_TEST_ORDER=7`` runs any rung in another order of files and of the tests in
each; that of sessions stays.

A Spark session takes up to 20 s to start, and its first node imports TensorFlow, which its fork server then keeps for
all others; on `local` the first of Spark's Python workers does so too (``tests/support/spark_workers``). So the tests
of a master stay in one process, one file after another. Those on `local`, which are most, go to as few processes as end
no later for it, divided by files. Tests in ``tests/unit`` go wherever there is time, and where they are few the last of
these files do.
"""

import faulthandler
import gc
import json
import os
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import psutil
import pytest
from pyspark import SparkContext

from tests.support.paths import TESTS

DURATIONS = TESTS / "durations.json"  # seconds by test, written by `make test-durations`
_TURNS = 10  # after which CI has run every test
_UNKNOWN_SECONDS = 3.0  # of a test whose file is new
_UNIT_SECONDS = 0.08  # of a test in tests/unit, on average
_SESSION_SECONDS = {"connect": 15.0, "local": 15.0, "local-cluster": 15.0, "standalone": 20.0}  # to start and to end
_LATE = 0.3  # of the tests of a process: files on `local` that another one may take, for seconds are not known of all
_ABORT_SECONDS = 120.0  # beyond the time-out of a test: for its fixtures, among them a Spark session
_PROCESS_BYTES = 8 << 30  # of a process of tests at its worst, with its sessions' JVMs and its nodes
_QUICK_FOLDER = "unit"  # whose tests are quick by themselves
_QUICK_PROCESS_BYTES = 6 << 30  # of one of the first rung
_MARKS = [
    "masters(*names): run on these Spark masters only; by default on all three",
    "smoke: of other folders than tests/unit, run by `make test` on the master `local`",
    "deep: of tests/unit, run by `make test-rest`",
    "slow: not run by `make test`; CI runs a tenth of them with each commit",
    "quick: run by `make test`; set by folder and marks",
]


def share_in_turn(cells, share):
    """Return one of `share` cells, of each group some: others whenever the tests that take turns have all run."""
    return list(cells)[int(os.environ.get("TFOS_TEST_TURN", "0")) // _TURNS % share :: share]


def shuffled(items, seed):
    """Return tests with their files, and the tests of each file, in an order that `seed` draws."""
    draw, files = random.Random(seed), defaultdict(list)
    for item in items:
        files[item.path].append(item)
    for of in files.values():
        draw.shuffle(of)
    return [item for file in draw.sample(list(files), len(files)) for item in files[file]]


class Ladder:
    """Marks the tests of the first rung, divides all among processes, and ends a process that hangs."""

    def __init__(self):
        self._stderr = os.dup(2)  # tests have another one

    def pytest_ignore_collect(self, collection_path, config):
        """Leave out files that have no test of the first rung, if that is all that is wanted: they need not be read."""
        if config.option.markexpr != "quick" or collection_path.suffix != ".py":
            return None
        above = collection_path.relative_to(TESTS).parts[0] != _QUICK_FOLDER
        return True if above and "mark.smoke" not in collection_path.read_text() else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        if seed := os.environ.get("TFOS_TEST_ORDER"):
            items[:] = shuffled(items, seed)
        for item in items:
            if _is_quick(item):
                item.add_marker(pytest.mark.quick)
        # Those that failed have had their turn.
        if not getattr(config.option, "lf", False) and (turn := os.environ.get("TFOS_TEST_TURN")):
            every = os.environ.get("TFOS_TEST_TURN_OF") == "all"
            taking_turns = [item.nodeid for item in items if every or item.get_closest_marker("slow")]
            others = set(taking_turns) - turns_of(taking_turns)[int(turn) % _TURNS]
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
            items[:] = [item for item in items if item.nodeid not in others]

    def pytest_collection_finish(self):
        """Have the collector of garbage leave out what is there: each search of it would take a second."""
        gc.freeze()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log):
        from xdist.scheduler import LoadScopeScheduling

        class Scheduler(LoadScopeScheduling):
            groups = None

            def _split_scope(self, nodeid):
                if self.groups is None:
                    self.groups = groups_of(self.collection, len(self.nodes))
                return self.groups.get(nodeid, nodeid)

        return Scheduler(config, log)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        """End this process, and show what each thread does, if neither fixtures nor the time-out end a test.

        pytest-xdist then reports the test as failed, and has the others run by a new process.
        """
        limit = item.get_closest_marker("timeout")
        limit = limit.args[0] if limit else float(item.config.getini("timeout"))
        faulthandler.dump_traceback_later(limit + _ABORT_SECONDS, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call):
        report = yield
        if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout (>"):
            _reconnect()
        return report


def _reconnect():
    """Give this thread a new connection to Spark's JVM: on the old one may be an answer that nobody has read."""
    gateway = SparkContext._gateway
    connection = gateway and gateway._gateway_client.get_thread_connection()
    if connection:
        connection.close()


class Durations:
    """Writes the seconds that each test took.

    Tests that did not run keep their seconds as long as they exist.
    """

    def __init__(self):
        self._seconds = Counter()

    def pytest_runtest_logreport(self, report):
        self._seconds[_short(report.nodeid)] += report.duration

    def pytest_sessionfinish(self):
        known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
        known |= {name: round(of, 1) for name, of in self._seconds.items() if not name.startswith("unit/")}
        kept = {name: known[name] for name in sorted(known) if (TESTS / name.partition("::")[0]).exists()}
        DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Return how many processes run the tests: as many as there are cores and memory for, and two at least.

    In the first rung it is one more: many of its tests wait for seconds to pass.
    """
    quick = config.option.markexpr == "quick"
    by_memory = psutil.virtual_memory().total // (_QUICK_PROCESS_BYTES if quick else _PROCESS_BYTES)
    return max(2, min(len(os.sched_getaffinity(0)) + quick, by_memory))


def configure(config):
    """Add what this module has to a run of pytest."""
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)
    config.pluginmanager.register(Ladder())
    if config.option.write_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


def skip(reason):
    """Skip a test for what is missing; where nothing may be skipped, fail it."""
    (pytest.fail if os.environ.get("TFOS_TEST_NO_SKIP") == "1" else pytest.skip)(reason)


def seconds_of(names):
    """Return how long each test takes; of one that was not measured, the mean of those of its file that were."""
    known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    files = defaultdict(list)
    for name, seconds in known.items():
        files[name.partition("::")[0]].append(seconds)
    means = {file: sum(of) / len(of) for file, of in files.items()}
    unknown = {name: means.get(_short(name).partition("::")[0], _UNKNOWN_SECONDS) for name in names}
    return {name: known.get(_short(name), unknown[name]) for name in names}


def turns_of(names):
    """Return as many sets of tests as there are turns, which take about equally long."""
    known = seconds_of(names)
    ordered = sorted(names, key=lambda name: (-known[name], name))
    return [set(ordered[first::_TURNS]) for first in range(_TURNS)]


def groups_of(names, processes):
    """Return the group of each test that has one; a group stays in one process.

    There is one for each process, and one for each file that goes wherever there is time (none if many tests do).
    """
    known = seconds_of(names)
    chunks = defaultdict(list)
    for name in names:
        if not name.startswith("tests/unit/"):
            chunks[_chunk(name)].append(name)
    for master, file in [chunk for chunk in chunks if chunk[0] == "local"]:
        chunks[master, file] += chunks.pop(("", file), [])  # a file's tests without a session stay beside the others
    lengths = {chunk: sum(known[name] for name in of) for chunk, of in chunks.items()}
    beside = _UNIT_SECONDS * (len(names) - sum(map(len, chunks.values())))
    found = divide(lengths, processes, beside)
    late = late_chunks(lengths, found) if beside < _LATE * sum(lengths.values()) else set()
    return {
        name: f"file {chunk[1]}" if chunk in late else f"group {process}"
        for chunk, process in found.items()
        for name in chunks[chunk]
    }


def late_chunks(lengths, processes):
    """Return the chunks on `local` that may leave their processes: the shortest, if several have a session on it.

    Examples
    --------
    >>> processes = {("local", each): each > "d" for each in "abcdefgh"}
    >>> sorted(late_chunks(dict.fromkeys(processes, 10), processes))
    [('local', 'a'), ('local', 'e')]
    """
    totals, late = Counter(), set()
    for chunk, process in processes.items():
        totals[process] += lengths[chunk]
    local = [chunk for chunk in sorted(processes, key=lambda chunk: (lengths[chunk], chunk)) if chunk[0] == "local"]
    if len({processes[chunk] for chunk in local}) > 1:
        free = {process: _LATE * total for process, total in totals.items()}
        for chunk in local:
            free[processes[chunk]] -= lengths[chunk]
            if free[processes[chunk]] >= 0:
                late.add(chunk)
    return late


def divide(lengths, processes, beside=0.0):
    """Divide chunks of tests among processes.

    Parameters
    ----------
    lengths : dict of (str, str) to float
        The seconds of each chunk, by the master of its session (empty for none) and a name.
    processes : int
        How many there are.
    beside : float
        The seconds of other tests, which go wherever there is time.

    Returns
    -------
    dict of (str, str) to int
        The process of each chunk. The longest chunks are assigned first, each to a process with a session on its
        master if that has not more than its share by it, or else to the one with the least to do.

    Examples
    --------
    >>> divide({("local", "a"): 60, ("local", "b"): 20, ("standalone", ""): 20}, 2)
    {('local', 'a'): 0, ('standalone', ''): 1, ('local', 'b'): 1}
    >>> divide({("local", "a"): 60, ("local", "b"): 30}, 2, beside=120)
    {('local', 'a'): 0, ('local', 'b'): 0}
    """
    sessions = {chunk: _SESSION_SECONDS.get(chunk[0], 0.0) for chunk in lengths}
    of_masters = {chunk[0]: seconds for chunk, seconds in sessions.items()}
    share = (sum(lengths.values()) + sum(of_masters.values()) + beside) / processes
    total, masters, found = [0.0] * processes, [set() for _ in range(processes)], {}
    for chunk in sorted(lengths, key=lambda chunk: (-lengths[chunk] - sessions[chunk], chunk)):
        ends = [
            total[each] + lengths[chunk] + (0.0 if chunk[0] in masters[each] else sessions[chunk])
            for each in range(processes)
        ]
        with_session = [each for each in range(processes) if sessions[chunk] and chunk[0] in masters[each]]
        there = [each for each in with_session if ends[each] <= share]
        process = min(there or range(processes), key=ends.__getitem__)
        total[process] = ends[process]
        masters[process].add(chunk[0])
        found[chunk] = process
    return found


def _chunk(name):
    """Return the chunk of a test: its master and file; all on a master other than `local` are one."""
    file, _, test = name.partition("::")
    master = (re.search("local-cluster|standalone|connect|local", test.partition("[")[2]) or [""])[0]
    return (master, "") if master not in ("", "local") else (master, file)


def _is_quick(item):
    if item.get_closest_marker("slow"):
        return False
    if Path(item.path).relative_to(TESTS).parts[0] == _QUICK_FOLDER:
        return item.get_closest_marker("deep") is None
    master = item.callspec.params.get("spark", "local") if hasattr(item, "callspec") else "local"
    return master == "local" and item.get_closest_marker("smoke") is not None


def _short(nodeid):
    """Return a test's name below ``tests``."""
    return nodeid.removeprefix("tests/")
