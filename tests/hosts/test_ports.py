"""Firewalls: a cluster takes its ports from a range, and what is closed is named."""

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.executor_checks import closed_between
from tensorflowonspark.driver.spark.resources import find_slots
from tests.support.programs import fit, small_frame

_SPARK = {"spark.driver.port": "7301", "spark.driver.blockManager.port": "7302", "spark.blockManager.port": "7303"}


@pytest.fixture
def firewalls(cluster):
    """A function that closes all ports of the hosts but Spark's and these, and some others of the driver's host."""

    def close(ports, drivers=""):
        master = cluster.master.rpartition(":")[2]
        for host in cluster.hosts:
            own = drivers if drivers and host is cluster.hosts[0] else ports
            cluster.network.filter_ports(host, f"{own}, {master}, 7301-7303")

    yield close
    for host in cluster.hosts:
        cluster.network.filter_ports(host, None)


def drive(spark, ports, **settings):
    with tfos.Cluster(
        spark, fit, {"batch_size": 10}, num_workers=2, network=tfos.Network(ports=ports), **settings
    ) as nodes:
        nodes.train(small_frame(spark, [40, 30, 50, 20]).repartition(4), feed_timeout=120)
        return [each.port for each in nodes.nodes], nodes.join()


@pytest.mark.timeout(240)
def test_a_cluster_needs_the_ports_of_its_range_alone(cluster, firewalls):
    firewalls("7000-7020")
    ports, results = cluster.run(drive, "7000-7020", settings=_SPARK)
    assert all(7000 <= port <= 7020 for port in ports)
    assert sorted(sum((each["seen"] for each in results.values()), [])) == list(range(140))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_closed_port_of_tensorflow_is_named(cluster, firewalls):
    firewalls("7001-7020", "7000-7020")

    def waits_less(spark):
        return drive(spark, "7000-7020", heartbeat_timeout=8.0)

    with pytest.raises(tfos.NodeError) as caught:
        cluster.run(waits_less, settings=_SPARK)
    assert "at port 7000 of TensorFlow (no answer within 2 s)" in caught.value.reason
    assert "tfos check --master" in caught.value.advice


def wide(args, ctx):
    """Train with gradients that no small packet holds."""
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(4096), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(ctx.dataset(batch_size=10, features="x", label="x"), epochs=2, verbose=0)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_workers_between_which_large_packets_are_lost_are_named(cluster):
    """Any two: where the driver's host is one of them, its messages to the node are lost, too."""
    one, two = cluster.hosts[1:3]

    def drive(spark):
        rows = spark.range(200).selectExpr("cast(id as float) x").repartition(4)
        with tfos.Cluster(spark, wide, num_workers=3, heartbeat_timeout=8.0) as nodes:
            nodes.train(rows, feed_timeout=120)
            return nodes.join()

    cluster.network.drop_large(one, two, 1200)
    try:
        with pytest.raises(tfos.NodeError) as caught:
            cluster.run(drive, settings={"spark.cores.max": "3"})
    finally:
        cluster.network.drop_large(one, two)
    assert "small packets arrive, and large ones do not: an MTU black hole" in caught.value.reason
    assert "MTU" in caught.value.advice


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_check_of_the_cluster_names_hosts_between_which_large_packets_are_lost(cluster):
    """These have no driver: Spark's own messages to an executor are large, and would be lost before."""
    one, two = cluster.hosts[1:3]

    def check(spark):
        find_slots(spark.sparkContext, 3, 3, 60.0, had=3)
        return closed_between(spark)

    cluster.network.drop_large(one, two, 1200)
    try:
        lines = cluster.run(check, settings={"spark.cores.max": "3"})
    finally:
        cluster.network.drop_large(one, two)
    assert len(lines) == 4
    assert all("large ones do not: an MTU black hole; give the interfaces" in line for line in lines)
    assert {line.partition(":")[0] for line in lines} == {one.address, two.address}


@pytest.mark.timeout(240)
def test_a_check_of_the_cluster_names_ports_that_are_closed(cluster, firewalls):
    firewalls("7000-7010")

    def check(spark):
        find_slots(spark.sparkContext, 3, 3, 60.0, had=3)
        return [closed_between(spark, ports) for ports in ("7000-7010", "7000-7011")]

    nothing, closed = cluster.run(check, settings={**_SPARK, "spark.cores.max": "3"})
    assert nothing == []
    assert len(closed) == 6
    assert all(":7011, where another executor listens (no answer within 4 s)" in line for line in closed)
