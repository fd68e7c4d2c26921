"""Contender: a driver that has its process for itself; other processes simulate its nodes."""

import resource
import time
from contextlib import contextmanager, suppress
from threading import Thread

import cloudpickle
import psutil

import tensorflowonspark as tfos
from benchmarks.common.rounds import serve_rounds
from benchmarks.scale.backend import PlayedBackend
from tensorflowonspark.config import ClusterConfig, ClusterSpec

_SILENCE, _LONG_SILENCE = 30.0, 300.0  # Cluster's default; and for so many nodes that those who play them fall behind
_MANY = 1000
_UP_SECONDS = 600
_REST_SECONDS = 5.0
_POLL_SECONDS = 0.001


class Meter:
    """The resources that this process uses from here on."""

    def __init__(self):
        self._process = psutil.Process()
        self._started = time.perf_counter()
        self._used = _processor_seconds()
        self._memory = self._process.memory_info().rss
        self._threads = self._process.num_threads()
        self._files = self._process.num_fds()

    def read(self):
        """Return seconds, processor seconds, bytes, threads and open files."""
        return {
            "seconds": time.perf_counter() - self._started,
            "cpu": _processor_seconds() - self._used,
            "memory": self._process.memory_info().rss - self._memory,
            "threads": self._process.num_threads() - self._threads,
            "files": self._process.num_fds() - self._files,
        }


def _processor_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def cluster_of(count, *, returns, trains=False, **settings):
    """Yield a cluster with this number of workers that is not started yet, and its backend."""
    config = ClusterConfig(
        spec=ClusterSpec(num_workers=count),
        program=cloudpickle.dumps(None),
        heartbeat_timeout=_SILENCE if count <= _MANY else _LONG_SILENCE,
        start_timeout=_UP_SECONDS,
        warm_nodes=False,
        **settings,
    )
    backend = PlayedBackend(count, returns, trains)
    try:
        yield tfos.Cluster._on_backend(backend, config), backend
    finally:
        backend.close()


def start(cluster):
    """Start a cluster; return when all programs wait for rows."""
    cluster.start()
    for node in cluster._monitor.roster.nodes:
        # Each until it waits: a scan of all per look would be the driver's time too.
        while not node.feed.waits:
            cluster._monitor.check()
            time.sleep(_POLL_SECONDS)


def start_and_shut_down(count):
    """Return the resources of a cluster's start-up, of its idle time and of its shutdown."""
    with cluster_of(count, returns=True) as (cluster, _):
        meter = Meter()
        start(cluster)
        up = meter.read()
        meter = Meter()
        time.sleep(_REST_SECONDS)
        rest = meter.read()
        meter = Meter()
        cluster.shutdown()
        down = meter.read()
    return {"up": up, "rest": rest, "down": down}


def death(count):
    """Return the seconds from a node's death to its error in the driver, and to the end of all other nodes."""
    moment = []

    def kill():
        time.sleep(0.5)
        moment.append(time.perf_counter())
        backend.players[-1].kill()

    with cluster_of(count, returns=False) as (cluster, backend):
        start(cluster)
        Thread(target=kill).start()
        with suppress(tfos.NodeError):
            cluster.join()
        noticed = time.perf_counter() - moment[0]
        with suppress(tfos.NodeError):
            cluster.shutdown()
        return {"noticed": noticed, "ended": time.perf_counter() - moment[0]}


def main():
    """Serve rounds; a first cluster of one node loads the modules that every driver needs."""
    start_and_shut_down(1)
    serve_rounds(lambda request: {**start_and_shut_down(request["nodes"]), "death": death(request["nodes"])})


if __name__ == "__main__":
    main()
