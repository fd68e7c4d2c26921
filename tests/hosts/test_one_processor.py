"""Clusters on hosts with one processor each."""

import os
import subprocess

import pytest

import tensorflowonspark as tfos
from tests.support.coordinated import Loop, coordinated
from tests.support.programs import small_frame


@pytest.fixture
def one_processor(cluster):
    """The cluster, all of whose processes, and what they start, have one processor."""

    def give(processors):
        for process in (process for host in cluster.hosts for process in host.processes()):
            command = ["taskset", "--all-tasks", "--cpu-list", "--pid", processors, str(process.pid)]
            subprocess.run(command, check=True, capture_output=True)

    every = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    give(every.partition(",")[0])
    yield cluster
    give(every)


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_parameter_servers_need_no_second_processor(one_processor):
    def drive(spark):
        def chief(args, ctx, coordinator):
            feed, loop = ctx.feed(), Loop(coordinator)
            return len(os.sched_getaffinity(0)), loop.to_the_end(feed, iter(loop.dataset(feed)))

        with tfos.Cluster(spark, coordinated(chief), num_workers=1, num_ps=1, chief=True) as cluster:
            cluster.train(small_frame(spark, [40, 30]), feed_timeout=120)
            return cluster.join()["chief:0"]

    processors, ids = one_processor.run(drive)
    assert processors == 1
    assert sorted(ids) == list(range(70))
