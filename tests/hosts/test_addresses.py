"""Several addresses: of a host that others reach at one of them alone, and of a driver behind a translation."""

import urllib.request
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.executor_checks import closed_between, examine_executors, problems_of
from tensorflowonspark.driver.spark.resources import find_slots
from tests.support.host_cluster import host_cluster
from tests.support.programs import all_ids, read, small_frame

_ELSEWHERE = "192.168.77.3"  # of a network that the other hosts don't have
_INSIDE = "172.31.7.2"
_SPARK = {"spark.driver.port": "7301", "spark.driver.blockManager.port": "7302"}
_DRIVERS, _PAGE = "7304", 8080


def _feed(spark, needed=3, **settings):
    with tfos.Cluster(spark, read, {}, num_workers=needed, **settings) as cluster:
        # So many partitions that some of each node's are computed on other hosts, whichever executor is faster.
        cluster.train(small_frame(spark, [40, 30, 50, 20]).repartition(24), feed_timeout=120)
        hosts, url = [each.host for each in cluster.nodes], cluster.dashboard_url
        if url:  # an executor opens it, as a browser does
            tasks = spark.sparkContext.parallelize([url], 1)
            (status,) = tasks.map(lambda each: urllib.request.urlopen(each, timeout=20).status).collect()
            assert status == HTTPStatus.OK
        return hosts, all_ids(cluster.join())


@contextmanager
def _translated(host, ports):
    """Pass on what arrives at a host's address, at some ports, to another one that nobody else knows."""
    to = f"ip daddr {host.address} tcp dport {{ {ports} }} dnat to {_INSIDE}"
    rules = [
        "add table ip inside",
        "add chain ip inside before { type nat hook prerouting priority -100; }",
        "add chain ip inside own { type nat hook output priority -100; }",
        f"add rule ip inside before {to}",
        f"add rule ip inside own {to}",
    ]
    host.run("ip", "addr", "add", f"{_INSIDE}/32", "dev", "lo")
    host.run("nft", "; ".join(rules))
    try:
        yield
    finally:
        host.run("nft", "delete", "table", "ip", "inside")
        host.run("ip", "addr", "del", f"{_INSIDE}/32", "dev", "lo")


def _behind(host):
    return {**_SPARK, "spark.driver.host": host.address, "spark.driver.bindAddress": _INSIDE}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_driver_behind_a_translation_of_addresses_is_reached_at_the_outer_one(cluster):
    one = cluster.hosts[0]
    with _translated(one, f"7301, 7302, {_DRIVERS}, {_PAGE}"):
        env = {"TFOS_SERVER_PORT": _DRIVERS}
        hosts, rows = cluster.run(partial(_feed, dashboard=_PAGE), settings=_behind(one), env=env)
    assert sorted(hosts) == [each.address for each in cluster.hosts]
    assert rows == list(range(140))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_port_of_the_driver_that_is_not_translated_is_named(cluster):
    def drive(spark):
        find_slots(spark.sparkContext, 3, 3, 60.0, had=3)
        executors = examine_executors(spark)
        problems = problems_of(executors[0], executors)
        with pytest.raises(tfos.StartError) as caught:
            _feed(spark)
        return problems, str(caught.value)

    one = cluster.hosts[0]
    with _translated(one, "7301, 7302"):
        problems, text = cluster.run(drive, settings=_behind(one), env={"TFOS_SERVER_PORT": _DRIVERS})
    assert any("it can't connect to the driver (" in each and "TFOS_SERVER_PORT: the port" in each for each in problems)
    assert f"it can't reach the driver at {one.address}:{_DRIVERS} (" in text
    assert cluster.hosts[2].address in text


@pytest.fixture(scope="module")
def two_networks(tmp_path_factory, can_make_hosts):
    """A cluster on the third host of which Spark finds an address that the others don't reach."""
    with host_cluster(tmp_path_factory.mktemp("networks"), workers=(0, 1)) as cluster:
        third = cluster.hosts[2]
        third.run("ip", "addr", "add", f"{_ELSEWHERE}/32", "dev", "lo")
        names = third.path("/run/hosts")
        names.write_text(names.read_text().replace(f"{third.address} {third.name}", f"{_ELSEWHERE} {third.name}"))
        worker = cluster.add_worker(2, addressed=False)
        yield cluster
        worker.stdin.close()
        worker.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_host_whose_name_leads_to_an_address_that_others_do_not_reach(two_networks):
    def drive(spark, network):
        find_slots(spark.sparkContext, 3, 3, 60.0, had=3)
        closed = closed_between(spark, "7000-7001")
        with pytest.raises(tfos.ClusterError) as caught:
            _feed(spark)
        return closed, str(caught.value), _feed(spark, network_interface=network)

    network = f"{two_networks.hosts[0].address.rpartition('.')[0]}.0/24"
    settings = {"spark.cores.max": "3", "spark.task.maxFailures": "1"}
    closed, text, (hosts, rows) = two_networks.run(drive, network, settings=settings)
    assert any(f"it can't connect to {_ELSEWHERE}:700" in each and "network_interface" in each for each in closed)
    assert _ELSEWHERE in text
    assert "network_interface" in text
    assert sorted(hosts) == [each.address for each in two_networks.hosts]
    assert rows == list(range(140))
