"""Runs programs on real nodes without Spark, and prints a line for each: ``--workers 2 --shape odd --only NAME…``."""

import argparse
import hashlib
import os
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import cloudpickle

import tensorflowonspark as tfos
import tests
from tensorflowonspark.driver.feed.job import FeedRequest
from tests.support.keras_table.judging import WRONG
from tests.support.local_cluster import local_cluster
from tests.support.own_steps import data, programs, running
from tests.support.own_steps.judging import judge
from tests.support.paths import ROOT


class LocalClusters:
    """Clusters of nodes beside this process."""

    def start(self, function, args, workers, env):
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        nodes = tfos.Nodes(heartbeat_timeout=60.0)
        env = {**env, "PYTHONPATH": path}
        return local_cluster(function, args, num_workers=workers, env=env, nodes=nodes, logs=tfos.Logs(show="none"))

    def feed(self, cluster, workers, shape):
        cluster._feed(FeedRequest(data.arrow_partitions(workers, shape), rebalance=False))


class Watch(threading.Thread):
    """Prints each verdict as soon as all workers and the one process have an outcome."""

    def __init__(self, directory, references, backend, workers, work, width):
        super().__init__(daemon=True)
        self.references = references
        self.directory, self.backend, self.workers, self.width = directory, backend, workers, width
        self.left = [(shape, name) for shape, names in work for name in names]
        self.counts, self.ended = Counter(), False

    def run(self):
        while self.left and not self.ended:
            self.look()
            time.sleep(0.2)

    def look(self, stalled=None):
        for shape, name in list(self.left):
            where = self.backend, self.workers, shape, name
            found = running.outcomes(self.directory, *where)
            alone = running.reference(self.references, *where)
            if stalled is None and (None in found or alone is None):
                continue
            self.left.remove((shape, name))
            verdict = judge(programs.ALL[name], self.backend, alone, found, (stalled or {}).get((shape, name), ""))
            kind = verdict.kind.upper() if verdict.kind == WRONG else verdict.kind
            self.counts[verdict.kind] += 1
            why = verdict.why if self.width is None else " ".join(verdict.why.split())[: self.width]
            print(f"{shape:7}{name:44}{kind:10}{why}", flush=True)


def kept(directory):
    """Return the directory for what one process gives of the present programs."""
    digest = hashlib.sha256()
    for file in sorted(Path(programs.__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    found = Path(directory) / digest.hexdigest()[:12]
    found.mkdir(parents=True, exist_ok=True)
    return found


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.support.own_steps", description=__doc__)
    parser.add_argument("--workers", type=int, default=2, choices=sorted(data.FEEDS))
    parser.add_argument("--shape", nargs="+", default=["odd"], choices=[*data.FEEDS[2], "all"])
    parser.add_argument("--backend", default="tensorflow", choices=["tensorflow", "jax"])
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="programs whose name or subject contains one of these"
    )
    parser.add_argument("--seconds", type=int, default=running.SECONDS, help="after which a program has hung")
    parser.add_argument("--width", type=int, default=400, help="of a reason; 0 for all of it")
    parser.add_argument("--references", help="a directory that keeps what one process gave, until a program changes")
    parser.add_argument("--list", action="store_true", help="print the programs and what is expected of them")
    options = parser.parse_args()
    programs.load()
    names = programs.chosen(options.backend, options.only)
    if options.list:
        for name in names:
            each = programs.ALL[name]
            print(f"{each.subject:14}{name:44}{'equal or refused' if options.backend in each.refused else 'equal'}")
        return
    shapes = list(data.FEEDS[2]) if "all" in options.shape else options.shape
    work = [(shape, names) for shape in shapes]
    cloudpickle.register_pickle_by_value(tests)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    with tempfile.TemporaryDirectory() as directory:
        references = kept(options.references) if options.references else Path(directory)
        where = options.backend, options.workers
        missing = [
            (shape, [name for name in names if running.reference(references, *where, shape, name) is None])
            for shape, names in work
        ]
        watch = Watch(Path(directory), references, *where, work, options.width or None)
        alone = running.start_reference(references, *where, missing)
        watch.start()
        stalled = running.run_on_workers(LocalClusters(), Path(directory), *where, work, options.seconds)
        _, errors = alone.communicate()
        watch.ended = True
        watch.join()
        watch.look(stalled)
        if alone.returncode:
            print(errors.decode()[-3000:])
    print(", ".join(f"{count} {kind}" for kind, count in sorted(watch.counts.items())))


if __name__ == "__main__":
    main()
