"""Rows and gradients across hosts, beside what the network can carry.

``feed`` has Spark's rows on three hosts and feeds nodes on two of them, beside the same on one host, a Spark shuffle
of the same rows, and a plain socket. ``slow`` does so at 100 Mbit/s, with rows of noise and rows like images.
``gradients`` times the steps of two workers that train in step on two hosts, by the size of their gradients. ``many``
has a worker on each of up to sixteen hosts, one of which vanishes. Hosts are made of Linux's namespaces, by root: they
share this machine's cores.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from statistics import median

from benchmarks.common.command import command, run
from benchmarks.common.report import circumstances, median_and_range, percent, table
from benchmarks.common.rounds import Contender, take_turns
from benchmarks.network.contender import WIDTH
from benchmarks.network.many import one_run
from tests.support.host_cluster import host_cluster

_ROW_BYTES = WIDTH * 4 + 4 + 8  # with the offset of the list, and the id
_ROWS, _SLOW_ROWS = 160_000, 16_000
_MEGABITS = 100
_GRADIENTS = (1, 10, 100)  # MB
_WORKERS = (2, 4, 8, 16)
_EVENTS = {
    "up": "all are up",
    "first steps": "fed, and first steps",
    "lost, and started again": "from a host's end to the restart",
    "lost, and next steps": "to the next steps",
}
_KINDS = {"noise": "noise, which no compression makes small", "images": "like images: four of five values are zero"}


class Bench:
    """Hosts, a Spark application that spans three of them, and one on a single host.

    Parameters
    ----------
    options : argparse.Namespace
        From the command line.
    stack : contextlib.ExitStack
        Ends them.
    log : file
        Receives the contenders' standard error.
    """

    def __init__(self, options, stack, log):
        self.options, self._stack, self._log = options, stack, log

    @cached_property
    def _apart(self):
        return self._hosts(3)

    @cached_property
    def _spanning(self):
        return self._application(self._apart)

    @cached_property
    def _single(self):
        return self._application(self._hosts(1))

    def _hosts(self, count):
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        workers = [number % count for number in range(3)]
        return self._stack.enter_context(host_cluster(directory, workers, cores=2, memory="2g", count_hosts=count))

    def _application(self, cluster):
        host = cluster.hosts[0]
        program = [sys.executable, "-m", "benchmarks.network.contender", cluster.master]
        confs = {"spark.executor.cores": 2, "spark.executor.memory": "1500m", "spark.driver.memory": "1g"}
        confs |= {"spark.ui.enabled": "false", "spark.scheduler.minRegisteredResourcesRatio": 1, "spark.cores.max": 6}
        submit = " ".join(f"--conf {name}={value}" for name, value in confs.items())
        settings = {
            "HOME": "/tmp",
            "SPARK_LOCAL_IP": host.address,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
        }
        python, *arguments = host.entering(program)
        return self._stack.enter_context(Contender(arguments, self._log, python, settings=settings))

    def turns(self, rows, kind):
        """Return the turns of feeding rows: across hosts, on one host, and beside them a shuffle and a socket."""
        request = {"kind": kind, "rows": rows}
        return {
            "feed": self.counted(self._spanning.turn(what="feed", **request)),
            "one host": lambda: {"seconds": self._single.round({"what": "feed", **request})},
            "shuffle": self.counted(self._spanning.turn(what="shuffle", **request)),
            "socket": lambda: {"seconds": self.send(rows * _ROW_BYTES)},
        }

    def counted(self, turn):
        """Return a turn whose result says how many bytes the hosts have got from the network."""

        def count():
            return sum(map(self._apart.network.received, self._apart.hosts))

        def both():
            before = count()
            return {"seconds": turn(), "bytes": count() - before}

        return both

    def steps(self, size, workers):
        """Return a turn of training: the seconds of a step."""
        return self._spanning.turn(what="gradients", bytes=size, workers=workers)

    def send(self, size):
        """Return the seconds that a plain socket takes for bytes from one host to another."""
        sender, receiver = self._apart.hosts[1:3]
        program = [sys.executable, "-m", "benchmarks.network.wire"]
        place = [receiver.address, "5001"]
        with receiver.popen([*program, "receive", *place], stdout=subprocess.PIPE, text=True) as receiving:
            assert receiving.stdout.readline()
            return float(sender.run(*program, "send", *place, str(size), seconds=600))

    def limit(self, megabits):
        """Limit what each host sends and receives."""
        for host in self._apart.hosts:
            self._apart.network.shape(host, megabits=megabits)


def feed(bench):
    """Measure the feed at the network's own speed."""
    rows = int(_ROWS * bench.options.scale)
    turns = bench.turns(rows, "noise")
    yield "feed", {"rows": rows, "rounds": take_turns(turns, bench.options.rounds, "feed")}


def slow(bench):
    """Measure the feed at 100 Mbit/s."""
    rows = int(_SLOW_ROWS * bench.options.scale)
    for kind in _KINDS:
        bench.limit(_MEGABITS)
        turns = {name: turn for name, turn in bench.turns(rows, kind).items() if name != "one host"}
        yield f"slow {kind}", {"rows": rows, "rounds": take_turns(turns, bench.options.rounds, f"slow {kind}")}
    bench.limit(None)


def gradients(bench):
    """Measure steps of two workers by the size of their gradients, at both speeds."""
    for megabits in (None, _MEGABITS):
        for megabytes in _GRADIENTS:
            size = megabytes * 1_000_000
            bench.limit(megabits)
            turns = {
                "two workers": bench.steps(size, 2),
                "one worker": bench.steps(size, 1),
                "socket": lambda size=size: bench.send(size),
            }
            title = f"gradients {megabytes} MB, {megabits or 'any'} Mbit/s"
            yield title, {"rounds": take_turns(turns, bench.options.rounds, title)}
    bench.limit(None)


def many(_bench):
    """Measure clusters of more and more hosts, each once."""
    for workers in _WORKERS:
        yield f"many {workers}", one_run(workers)


_PARTS = {"feed": feed, "slow": slow, "gradients": gradients, "many": many}


def measure(options, log):
    """Run the parts."""
    for part in options.parts.split(","):
        with ExitStack() as stack:
            for name, found in _PARTS[part](Bench(options, stack, log)):
                yield {"about": circumstances(options), name: found}


def _of_feed(name, found):
    size = found["rows"] * _ROW_BYTES
    socket = median(each["seconds"] for each in found["rounds"]["socket"])
    rows = []
    for way, rounds in found["rounds"].items():
        seconds = [each["seconds"] for each in rounds]
        sent = f"{median(each['bytes'] for each in rounds) / size:.2f}" if "bytes" in rounds[0] else ""
        speeds = [size / each / 1e6 for each in seconds]
        rows.append([name, way, f"{socket / median(seconds):.2f}", median_and_range(speeds, "{:,.0f}", " MB/s"), sent])
    return rows


def report(results):
    """Return the sections of the page."""
    sections = {}
    head = ["network", "way", "of the socket", "speed", "bytes over the network, of the rows'"]
    names = {"feed": "as fast as it goes"} | {
        f"slow {kind}": f"{_MEGABITS} Mbit/s; {title}" for kind, title in _KINDS.items()
    }
    rows = [row for name, title in names.items() if name in results for row in _of_feed(title, results[name])]
    if rows:
        sections["feed"] = f"{results['about']}\n\n{table(head, rows)}"
    rows = []
    for title, found in results.items():
        if title.startswith("gradients"):
            two, one, socket = (found["rounds"][way] for way in ("two workers", "one worker", "socket"))
            network = median(two) - median(one)
            cells = (
                median_and_range([1e3 * each for each in values], "{:,.0f}", " ms") for values in (two, one, socket)
            )
            rows.append([title.removeprefix("gradients "), f"{network / median(socket):.2f}", *cells])
    if rows:
        head = [
            "gradients, network",
            "of the socket's time, beyond one worker's",
            "two workers",
            "one worker",
            "socket",
        ]
        sections["gradients"] = f"{results['about']}\n\n{table(head, rows)}"
    rows = [
        [title.removeprefix("many "), *(f"{found[name]:.0f} s" for name in _EVENTS), percent(found["driver"])]
        for title, found in results.items()
        if title.startswith("many")
    ]
    if rows:
        head = ["workers", *_EVENTS.values(), "the driver's host, of all processor time"]
        sections["many"] = f"{results['about']} Each run once.\n\n{table(head, rows)}"
    return sections


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("hosts are made by root: run this benchmark as root")
    run(command("network", __doc__, parts=_PARTS, scaled=True), measure, report)
