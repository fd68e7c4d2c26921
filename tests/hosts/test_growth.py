"""A host that joins a Spark cluster while a training runs: a restart takes it in, and the epoch goes on at its row."""

import time
from threading import Thread

import pytest

import tensorflowonspark as tfos
from tests.support.host_cluster import host_cluster
from tests.support.resumed_cluster import PROGRAM, counted, train

ROWS, GROW_SECONDS = 600, 2.0


def drive(spark, args):
    """Train; return when there was a slot more, and what happened when."""
    found = []

    def look():
        scala = spark.sparkContext._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        while scala.maxNumConcurrentTasks(profile) < 2:
            time.sleep(0.05)
        found.append(time.time())

    Thread(target=look, daemon=True).start()
    settings = {"restarts": 1, "nodes": tfos.Nodes(grow_after=GROW_SECONDS), "logs": tfos.Logs(show="all")}
    with tfos.Cluster(spark, train, args, num_workers=(1, 2), **settings) as cluster:
        cluster.train(spark.range(0, ROWS, 1, 6))
        results = cluster.join()
        return found, [(each.kind, each.time) for each in cluster.metrics().events], len(results)


@pytest.fixture
def small_cluster(can_make_hosts, tmp_path):
    with host_cluster(tmp_path, workers=(1,)) as cluster:
        yield cluster
        assert not (left := cluster.left()), f"left behind: {left}"


@pytest.mark.timeout(300)
def test_a_host_that_joins_is_taken_in(small_cluster):
    directory = small_cluster.shared / "notes"
    directory.mkdir()
    args = {**PROGRAM, "directory": str(directory), "epochs": 2, "every": 1000, "pace": 0.25}
    driver = small_cluster.start(drive, args, seconds=250)
    driver.wait_for_path(directory / "restored-0-0-0", 200)
    small_cluster.add_worker(2)
    slots, events, workers = driver.result()
    assert [kind for kind, _ in events] == ["started", "restart", "started"]
    (_, _), (_, restarted), (_, again) = events
    print(f"restart after {restarted - slots[0]:.1f} s, all up after {again - slots[0]:.1f} s")
    assert "All nodes are started again (growth 1)" in driver.output
    assert workers == 2
    found = counted(directory, 2)
    assert len(found.begun) == 2
    assert not found.differences(range(ROWS)), found.begun
