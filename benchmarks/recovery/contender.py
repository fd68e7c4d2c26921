"""Contender: a driver on ``local[2]`` that kills a node of its cluster during a training."""

import logging
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from threading import Event, Thread

import cloudpickle

import tensorflowonspark as tfos
from benchmarks.common.rounds import serve_rounds
from benchmarks.feed.rows import KINDS
from benchmarks.recovery import program, ways
from benchmarks.recovery.program import SAVE_EVERY, STEPS_AFTER, STEPS_BEFORE, noted

_ROWS = 20_000
_POLL_SECONDS = 0.002
_FROM_NODES = ("up", "imported", "built", "fed", "restored", "step")


class Killer:
    """Kills the second node when both are training; ``moment`` is the time of the kill."""

    def __init__(self, directory):
        self.moment = None
        self._directory = directory
        Thread(target=self._kill, daemon=True).start()

    def _kill(self):
        while (busy := noted(self._directory, "busy")) is None:
            time.sleep(_POLL_SECONDS)
        self.moment = time.time()
        os.kill(busy[1], signal.SIGKILL)


class Restart(logging.Handler):
    """Records the times when the driver logs the restart, and when it has replaced the old nodes."""

    def __init__(self, cluster):
        super().__init__()
        self.noticed = self.gone = None
        self._cluster = cluster
        self._monitor = cluster._monitor
        self._over = Event()

    def emit(self, record):
        if "started again" in record.getMessage():
            self.noticed = record.created
            Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while self._cluster._monitor is self._monitor:
            time.sleep(_POLL_SECONDS)
        self.gone = time.time()


def cluster_of(spark, directory, request, **settings):
    """Return a cluster of two workers."""
    args = {"directory": directory, "kill": request["measure"] != "fresh"}
    return tfos.Cluster(
        spark, program.program, args, num_workers=2, nodes=tfos.Nodes(warm_nodes=request["warm"]), **settings
    )


def notice(spark, rows, directory, request):
    """Return the seconds from a kill to the driver's error."""
    killer = Killer(directory)
    with suppress(tfos.NodeError), cluster_of(spark, directory, request) as cluster:
        try:
            cluster.train(rows)
        except tfos.NodeError:
            noticed = time.time()
            raise
    return {"noticed": noticed - killer.moment}


def fresh(spark, rows, directory, request):
    """Return the seconds of each part from the start of a cluster to the first step."""
    started = time.time()
    with cluster_of(spark, directory, request) as cluster:
        cluster.train(rows)
    return parts(started, {what: noted(directory, what)[0] for what in _FROM_NODES})


def recovery(spark, rows, directory, request):
    """Return the seconds of each part from a kill to the next attempt's first step."""
    killer = Killer(directory)
    logger = logging.getLogger("tensorflowonspark")
    with cluster_of(spark, directory, request, restarts=1) as cluster:
        restart = Restart(cluster)
        logger.addHandler(restart)
        try:
            cluster.train(rows)
        finally:
            logger.removeHandler(restart)
        steps = cluster.shutdown()["worker:0"] - STEPS_AFTER
    assert steps >= STEPS_BEFORE // SAVE_EVERY * SAVE_EVERY, steps
    assert steps % SAVE_EVERY == 0, steps
    moments = {"noticed": restart.noticed, "gone": restart.gone}
    return parts(killer.moment, moments | {what: noted(directory, what, attempt=1)[0] for what in _FROM_NODES})


def parts(started, moments):
    """Return the seconds of each part and of all together, given the times of their ends."""
    found, before = {}, started
    for name, moment in moments.items():
        found[name] = moment - before
        before = moment
    return {**found, "all": before - started}


def main():
    """Serve rounds."""
    from pyspark.sql import SparkSession

    for each in (program, ways):  # the nodes can't import them
        cloudpickle.register_pickle_by_value(each)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.range(0, _ROWS, 1, 2).selectExpr(*KINDS["floats"].columns).cache()
    rows.count()
    measures = {"notice": notice, "fresh": fresh, "recovery": recovery, **dict.fromkeys(ways.WAYS, ways.measure)}

    def run_round(request):
        with tempfile.TemporaryDirectory() as directory:
            return measures[request["measure"]](spark, rows, directory, request)

    serve_rounds(run_round)
    spark.stop()


if __name__ == "__main__":
    main()
