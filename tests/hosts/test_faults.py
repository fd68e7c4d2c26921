"""Faults of hosts, and of the network between them, while a cluster is fed and trains."""

import time
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tests.support.programs import read, wait_for

ROWS, PARTITIONS = 1200, 12


def _slow_rows(spark, begun, seconds):
    """Return rows whose partitions take a while to compute, and note the first one's beginning."""

    def slowly(batches):
        begun.touch()
        time.sleep(seconds)
        yield from batches

    return spark.range(0, ROWS, 1, PARTITIONS).mapInArrow(slowly, "id long")


def _feed(spark, shared, seconds=1.5):
    """Feed three nodes for some seconds; return the ids that they have read."""
    with tfos.Cluster(spark, read, {}, num_workers=3) as cluster:
        cluster.train(_slow_rows(spark, Path(shared, "begun"), seconds), feed_timeout=200)
        return sorted(row for feeds in cluster.join().values() for row in feeds[0][0])


@pytest.fixture
def begun(cluster):
    path = cluster.shared / "begun"
    path.unlink(missing_ok=True)
    return path


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_cut_of_some_seconds_costs_no_row(cluster, begun):
    driver = cluster.start(_feed, cluster.shared)
    wait_for(begun.exists, 300)
    cluster.network.cut(cluster.hosts[2])
    time.sleep(3)
    cluster.network.heal(cluster.hosts[2])
    assert driver.result() == list(range(ROWS))


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_slow_link_that_loses_packets_costs_no_row(cluster, begun):
    cluster.network.shape(cluster.hosts[2], loss=0.02, megabits=20)
    try:
        assert cluster.run(_feed, cluster.shared, 0) == list(range(ROWS))
    finally:
        cluster.network.shape(cluster.hosts[2])


@pytest.mark.timeout(300)
def test_rows_are_compressed_on_a_slow_link(cluster):
    def feed_wide(spark):
        data = spark.range(0, ROWS, 1, 2 * PARTITIONS).selectExpr("id", "array_repeat(id, 8000) as x")
        with tfos.Cluster(spark, read, {}, num_workers=3) as nodes:
            nodes.train(data, feed_timeout=200)
            return sorted(row for feeds in nodes.join().values() for row in feeds[0][0])

    def received():
        return sum(map(cluster.network.received, cluster.hosts))

    before = received()
    for host in cluster.hosts:
        cluster.network.shape(host, megabits=100)
    try:
        assert cluster.run(feed_wide) == list(range(ROWS))
    finally:
        for host in cluster.hosts:
            cluster.network.shape(host)
    others = ROWS * 8000 * 8 * 2 / 3  # bytes that go to other hosts
    assert received() - before < others / 2  # the first ones show that the network is slow


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_host_that_vanishes_is_named(cluster, begun):
    def drive(spark, shared):
        with pytest.raises(tfos.NodeError) as caught:
            _feed(spark, shared, 60)
        return str(caught.value)

    started = cluster.start(drive, cluster.shared)
    wait_for(begun.exists, 300)
    gone = cluster.hosts[2]
    cluster.network.kill(gone)
    try:
        text = started.result()
    finally:
        cluster.revive(2)
    assert gone.address in text
