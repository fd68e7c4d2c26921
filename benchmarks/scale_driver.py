"""Contender of scale.py: a driver, alone in its process; its nodes are played by others."""

import resource
import time
from contextlib import contextmanager, suppress
from threading import Thread

import cloudpickle
import psutil

import tensorflowonspark as tfos
from rounds import contend
from scale_backend import PlayedBackend
from tensorflowonspark.config import ClusterConfig, ClusterSpec

_SILENCE = 30.0  # Cluster's default
_UP_SECONDS = 600
_REST_SECONDS = 5.0
_LOOK_SECONDS = 0.001


class Meter:
    """What this process needs from here on."""

    def __init__(self):
        self._process = psutil.Process()
        self._started = time.perf_counter()
        self._used = _processor_seconds()
        self._memory = self._process.memory_info().rss
        self._threads = self._process.num_threads()
        self._files = self._process.num_fds()

    def read(self):
        """Return it: seconds first, then what is held."""
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
def cluster_of(count, *, returns):
    """Yield a cluster of so many workers that is not started yet, and what carries it."""
    settings = ClusterConfig(
        spec=ClusterSpec(num_workers=count),
        program=cloudpickle.dumps(None),
        heartbeat_timeout=_SILENCE,
        start_timeout=_UP_SECONDS,
        warm_nodes=False,
    )
    backend = PlayedBackend(count, returns)
    try:
        yield tfos.Cluster.carried_by(backend, settings), backend
    finally:
        backend.close()


def start(cluster):
    """Bring it up; return when all programs wait for rows."""
    cluster.start()
    while not all(node.waits_for_feed for node in cluster.nodes):
        time.sleep(_LOOK_SECONDS)


def good_life(count):
    """Return what it takes to bring a cluster up, to have it, and to shut it down."""
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
    """Return the seconds from a node's end to its error in the driver, and until all others have ended too."""
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
    """Serve rounds; the first cluster of one node loads what every driver has, whatever its size."""
    good_life(1)
    contend(lambda count: {**good_life(int(count)), "death": death(int(count))})


if __name__ == "__main__":
    main()
