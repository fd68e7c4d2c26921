"""Contender: a stream, and the memory of the processes that it passes through."""

import os
import secrets
import time
from contextlib import suppress

import psutil

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.sampling import PeakSampler
from benchmarks.common.spark import Frames, two_whole_workers
from benchmarks.feed.rows import KINDS

_MARK = "TFOS_BENCHMARK"  # an environment variable that only our processes have
FILES = "files in memory"
_ROLES = {"tensorflowonspark.node": "node", "pyspark.daemon": "python worker", "pyspark.worker": "python worker"}


def pass_slowly(args, ctx):
    """Consume each feed's rows, more slowly than they arrive."""
    rows = []
    for feed in ctx.feeds():
        rows.append(0)
        for *_, weights in feed.batches(256)():
            rows[-1] += int((weights > 0).sum())
            time.sleep(args["pause"])
    return rows


class Sampler(PeakSampler):
    """Samples the memory of our processes of the kinds in `_ROLES`, and of the files in memory that they share."""

    def __init__(self, mark):
        super().__init__()
        self._mark = f"{_MARK}={mark}"
        self._roles = {}  # by process, None for one of somebody else

    def sizes(self):
        """Return the bytes of anonymous memory of each process, by its id, and of all files in memory."""
        ours = [each for each in psutil.pids() if self.role(each)]
        files = {}
        for each in ours:
            files |= memory_files(each)
        return {**{each: anonymous_bytes(each) for each in ours}, FILES: sum(files.values())}

    def role(self, process):
        """Return the role of a process of ours; None for any other process."""
        if process == FILES:
            return FILES
        if process not in self._roles:
            self._roles[process] = self._find_role(process)
        return self._roles[process]

    def _find_role(self, process):
        try:
            with open(f"/proc/{process}/cmdline") as line, open(f"/proc/{process}/environ") as environment:
                words, mark = line.read().split("\0"), self._mark in environment.read().split("\0")
        except OSError:
            return None
        return next((role for module, role in _ROLES.items() if module in words), None) if mark else None


def anonymous_bytes(process):
    """Return the bytes of memory of a process that no file backs; 0 if it has ended."""
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


def stream(spark, frames, request):
    """Return the seconds of a streamed feed, and the growth of memory by role, in bytes."""
    import tensorflowonspark as tfos

    big = frames.of(KINDS["floats"].columns, request["rows"], request["partitions"])
    small = big.limit(1_000).repartition(2)
    with (
        tfos.Cluster(spark, pass_slowly, {"pause": request["pause"]}, num_workers=1) as cluster,
        Sampler(os.environ[_MARK]) as sampler,
    ):
        cluster.train(small, cache=None, cache_limit=request["limit"])
        time.sleep(1)
        before = sampler.sizes()
        sampler.peaks = {}
        started = time.monotonic()
        cluster.train(big, cache=None, cache_limit=request["limit"])
        seconds = time.monotonic() - started
        peaks = dict(sampler.peaks)
    assert cluster.join()["worker:0"] == [1_000, request["rows"]]
    return {"seconds": seconds, **growth(before, peaks, sampler.role)}


def growth(before, peaks, role):
    """Return the highest growth of a process of each role, and the bytes that it had before."""
    found = {}
    for process, peak in peaks.items():
        start = before.get(process)
        if start is None:  # started in the meantime
            start = min((size for other, size in before.items() if role(other) == role(process)), default=0)
        if peak - start > found.get(role(process), (-1, 0))[0]:
            found[role(process)] = (peak - start, start)
    return found


def main():
    """Serve rounds."""
    os.environ[_MARK] = secrets.token_hex(8)
    with two_whole_workers("4g") as spark:
        frames = Frames(spark)
        serve_rounds(lambda request: stream(spark, frames, request))


if __name__ == "__main__":
    main()
