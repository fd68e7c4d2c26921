"""A cluster in one process: all of ours but the processes themselves, and threads in place of Spark's tasks.

Real are the driver's logic, every connection, the nodes' caches and feeds, and the programs. So hundreds of feeds run
in a minute, with tasks that fail on purpose and are repeated.
"""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import pyarrow as pa

import tensorflowonspark as tfos
from tensorflowonspark import transport
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.feed_messages import PartitionFed
from tensorflowonspark.messages import Member, NodeEndpoint, Probe, ProbeReply, Register
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.feed_server import FeedServer
from tensorflowonspark.node.main import run_program
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.task.feeder import feed_partition
from tests.support.backend import LoopbackBackend, PlayedStage, cluster_on
from tests.support.messages import opened


class Pipe:
    """In place of the pipe from a node through its supervisor to the driver."""

    def __init__(self, channel):
        self._channel = channel

    def send(self, message):
        self._channel.send(opened(message))

    def fileno(self):
        raise OSError("it is not one of this process's files")

    def recv(self):
        try:
            message = opened(self._channel.receive())
            if isinstance(message, Probe):  # which the supervisor answers
                self._channel.send(ProbeReply(message.number))
            return message
        except transport.ConnectionLost:
            Event().wait()  # for ever: this thread alone ends with the tests, where a node's process would end


def run_node(plan, number, directory, placed, batches=()):
    """Run a node in this thread, from its hello to the driver's stop; a held one is fed by its task."""
    role = plan.config.spec.roles[number]
    socket = str(Path(directory) / f"{number}.sock")
    setup = NodeSetup(plan.config, number, "127.0.0.1", plan.credentials, (), socket, directory)
    channel = transport.connect(plan.driver, plan.credentials).channel()
    channel.send(Register(Member(number, role, "127.0.0.1", 1), plan.cluster_id, os.getpid(), os.getpid()))
    channel.receive()
    placed.set()
    link = Link(Pipe(channel))
    receiver = FeedServer(setup, link.send)
    link.send(receiver.ready)
    if plan.feed is not None:
        Thread(target=feed_held, args=(plan, number, receiver.ready, batches, link.send), daemon=True).start()
    members = link.wait_for_members()
    link.send(run_program(setup, members, link, receiver))
    link.wait_for_stop()
    channel.close()
    for server in (receiver._local, receiver._remote):
        server.close()


def feed_held(plan, number, ready, batches, send):
    """Do what the task that holds a node does."""
    endpoint = NodeEndpoint(number, str(plan.config.spec.roles[number]), "127.0.0.1", ready, plan.driver)
    parts = feed_partition(endpoint, plan.credentials, plan.feed, number, 0, iter(batches))
    send(PartitionFed(plan.feed.feed, parts))


class Row(NamedTuple):
    """A row of a feeding job's result."""

    split: str
    partition: int
    attempt: int
    node: int
    checksum: int


class ThreadJob:
    """Feeds partitions from threads; a task that fails is repeated, as Spark does."""

    def __init__(self, function, partitions, on_end, *, slots, mishaps, chosen=None):
        self.ended, self.result, self.error = False, None, None
        self._attempts = count(1)
        self._function = function
        self._mishaps = dict(mishaps)
        self._on_end = on_end
        self._slots = slots
        self._chosen = chosen
        self._thread = Thread(target=self._run, args=(partitions,), daemon=True)
        self._thread.start()

    def _run(self, partitions):
        try:
            with ThreadPoolExecutor(self._slots) as pool:
                numbers = [number for number in range(len(partitions)) if self._chosen is None or self._chosen(number)]
                results = pool.map(self._task, numbers, [partitions[number] for number in numbers])
                self.result = [Row(**row) for result in results for batch in result for row in batch.to_pylist()]
        except BaseException as error:
            self.error = error
        self.ended = True
        self._on_end()

    def _task(self, partition, batches):
        mishap = self._mishaps.pop(partition, None)
        if mishap == "before the end":
            with suppress(InterruptedError):
                self._attempt(self._function, partition, breaking(batches))
        elif mishap == "after the end":
            self._attempt(self._function, partition, batches)
        elif mishap == "elsewhere":
            endpoints = self._function.endpoints
            other = endpoints[(partition + 1) % len(endpoints)]
            self._attempt(replace(self._function, endpoints=(other,)), partition, batches)
        return self._attempt(self._function, partition, batches)

    def _attempt(self, function, partition, batches):
        return list(function(partition, next(self._attempts), iter(batches)))

    def tasks(self):
        return 0, 0, 0

    def cancel(self):
        pass

    def wait(self, seconds):
        self._thread.join(seconds)


def breaking(batches):
    """Yield some of a partition, then break off as a task that is killed."""
    yield from batches[:1]
    raise InterruptedError


class ThreadNodes:
    """Starts the nodes of a plan as threads of this process; held ones with their partitions."""

    def __init__(self, partitions=None):
        self._partitions = partitions
        self._directory = tempfile.TemporaryDirectory(prefix="inprocess-")

    def __call__(self, plan, on_end):
        placed = [Event() for _ in plan.config.spec.roles]
        for number, event in enumerate(placed):
            batches = self._partitions[number] if self._partitions else ()
            Thread(target=run_node, args=(plan, number, self._directory.name, event, batches), daemon=True).start()
        return PlayedStage(placed)


def cluster_in_process(program, args=None, *, slots=2, mishaps=(), **settings):
    """Return a cluster whose nodes are threads of this process; it is fed lists of partitions, which are batches.

    Parameters
    ----------
    slots : int
        How many partitions are fed at the same time.
    mishaps : dict of int to str
        What happens to the first task of a partition: "before the end", "after the end" or "elsewhere".
    """

    def submit(function, data, on_end):
        partitions = data if function.spec.split.value == "train" else data[:2]
        return ThreadJob(function, partitions, on_end, slots=slots, mishaps=mishaps)

    return cluster_on(LoopbackBackend(ThreadNodes(), submit), program, args, **settings)


def run_in_process(program, args, partitions, **how):
    """Return what a program returns on the nodes of a held cluster, one for each partition.

    Parameters
    ----------
    **how
        Of the `FeedRequest`.
    """
    backend = LoopbackBackend(ThreadNodes(partitions))
    cluster = cluster_on(backend, program, args, num_workers=len(partitions), nodes=tfos.Nodes(hold=True))
    cluster._start(FeedRequest(None, timeout=20.0, **how))
    return cluster.shutdown()


def partitions_of(sizes, batch_rows=7):
    """Return partitions of these sizes, of rows numbered on: x (two floats), id."""
    start, partitions = 0, []
    for size in sizes:
        batches = []
        for first in range(start, start + size, batch_rows):
            ids = range(first, min(first + batch_rows, start + size))
            batches.append(
                pa.record_batch(
                    {"x": pa.array([[i, -i] for i in ids], pa.list_(pa.float32())), "id": pa.array(ids, pa.int64())}
                )
            )
        partitions.append(batches)
        start += size
    return partitions
