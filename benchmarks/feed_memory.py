"""Contender of feed.py: how much memory the processes on the rows' way take while a stream passes through them."""

import json
import os
import secrets
import threading
import time
from contextlib import suppress

import psutil
from standalone import two_one_core_workers

from feed_rows import Frames
from rounds import contend

_MARK = "TFOS_BENCHMARK"  # an environment variable by which our processes are told from others
_SECONDS = 0.05
FILES = "files in memory"
_ROLES = {"tensorflowonspark.node": "node", "pyspark.daemon": "python worker", "pyspark.worker": "python worker"}


def pass_slowly(args, ctx):
    """Take each feed's rows, more slowly than they come."""
    rows = []
    for feed in ctx.feeds():
        rows.append(0)
        for *_, weights in feed.batches(256)():
            rows[-1] += int((weights > 0).sum())
            time.sleep(args["pause"])
    return rows


class Sampler:
    """Watches the memory of our processes of the kinds in `_ROLES`, and of the files in memory that they share."""

    def __init__(self, mark):
        self._mark = f"{_MARK}={mark}"
        self._roles = {}  # by process, None for a stranger's
        self.peaks = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(_SECONDS):
            for what, size in self.sizes().items():
                self.peaks[what] = max(size, self.peaks.get(what, 0))

    def sizes(self):
        """Return the bytes of anonymous memory of each process, by its number, and of all files in memory."""
        ours = [each for each in psutil.pids() if self.role(each)]
        files = {}
        for each in ours:
            files |= memory_files(each)
        return {**{each: anonymous_bytes(each) for each in ours}, FILES: sum(files.values())}

    def role(self, process):
        """Return what a process of ours is; None if it is not ours or of no interest."""
        if process == FILES:
            return FILES
        if process not in self._roles:
            self._roles[process] = self._look(process)
        return self._roles[process]

    def _look(self, process):
        try:
            with open(f"/proc/{process}/cmdline") as line, open(f"/proc/{process}/environ") as environment:
                words, mark = line.read().split("\0"), self._mark in environment.read().split("\0")
        except OSError:
            return None
        return next((role for module, role in _ROLES.items() if module in words), None) if mark else None


def anonymous_bytes(process):
    """Return how much memory a process has of its own, that is no file's; 0 if it is gone."""
    try:
        with open(f"/proc/{process}/status") as status:
            return next((int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:")), 0)
    except OSError:
        return 0


def memory_files(process):
    """Return the bytes of the files in memory (``memfd_create``) that a process has open or mapped, by their inodes."""
    found = {}
    with suppress(OSError), open(f"/proc/{process}/maps") as maps:
        for line in maps:
            if "/memfd:" in line:
                span, *_, inode = line.split()[:5]
                start, end = (int(each, 16) for each in span.split("-"))
                found[int(inode)] = end - start
    with suppress(OSError):
        for each in os.scandir(f"/proc/{process}/fd"):
            with suppress(OSError):
                if os.readlink(each.path).startswith("/memfd:"):
                    state = os.stat(each.path)
                    found[state.st_ino] = state.st_blocks * 512
    return found


def stream(spark, frames, order):
    """Return the peaks and what was there before, by role, in bytes."""
    import tensorflowonspark as tfos

    big = frames.get("floats", order["rows"], order["partitions"])
    small = big.limit(1_000).repartition(2)
    with (
        tfos.Cluster(spark, pass_slowly, {"pause": order["pause"]}, num_workers=1) as cluster,
        Sampler(os.environ[_MARK]) as sampler,
    ):
        cluster.train(small, cache="none", cache_limit=order["limit"])
        time.sleep(1)
        before = sampler.sizes()
        sampler.peaks = {}
        started = time.monotonic()
        cluster.train(big, cache="none", cache_limit=order["limit"])
        seconds = time.monotonic() - started
        peaks = dict(sampler.peaks)
    assert cluster.join()["worker:0"] == [1_000, order["rows"]]
    return {"seconds": seconds, **growth(before, peaks, sampler.role)}


def growth(before, peaks, role):
    """Return the highest growth of a process of each role, and where it began."""
    found = {}
    for process, peak in peaks.items():
        start = before.get(process)
        if start is None:  # begun since
            start = min((size for other, size in before.items() if role(other) == role(process)), default=0)
        if peak - start > found.get(role(process), (-1, 0))[0]:
            found[role(process)] = (peak - start, start)
    return found


def main():
    """Serve rounds."""
    os.environ[_MARK] = secrets.token_hex(8)
    settings = {"spark_executor_memory": "4g", "spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    with two_one_core_workers("4g", **settings) as spark:
        frames = Frames(spark)
        contend(lambda what: stream(spark, frames, json.loads(what)))


if __name__ == "__main__":
    main()
