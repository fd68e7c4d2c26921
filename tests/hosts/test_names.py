"""Names of hosts: those that others do not know, and those that stand for loopback."""

from contextlib import contextmanager

import pytest

import tensorflowonspark as tfos
from tests.support.programs import read, small_frame

OWN = "{address} {name}"
DEBIAN = "127.0.1.1 {name}"


@contextmanager
def named(cluster, line):
    """Let each host know no other name than its own, at this address."""
    files = {each: each.path("/run/hosts") for each in cluster.hosts}
    before = {each: file.read_text() for each, file in files.items()}
    for host, file in files.items():
        file.write_text(f"127.0.0.1 localhost\n{line.format(address=host.address, name=host.name)}\n")
    try:
        yield
    finally:
        for host, file in files.items():
            file.write_text(before[host])


def _feed(spark, needed=3):
    with tfos.Cluster(spark, read, {}, num_workers=needed) as cluster:
        cluster.train(small_frame(spark, [40, 30, 50, 20]), feed_timeout=120)
        hosts = [each.host for each in cluster.nodes]
        return hosts, sorted(row for feeds in cluster.join().values() for row in feeds[0][0])


@pytest.mark.slow
@pytest.mark.timeout(450)
@pytest.mark.parametrize(
    ("line", "given"), [(DEBIAN, False), (OWN, True)], ids=["loopback", "the-drivers-address-is-given"]
)
def test_addresses_do_where_names_lead_nowhere(cluster, line, given):
    settings = {"spark.driver.host": cluster.hosts[0].address} if given else {}
    with named(cluster, line):
        hosts, rows = cluster.run(_feed, settings=settings)
    assert sorted(hosts) == [each.address for each in cluster.hosts]
    assert rows == list(range(140))


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_driver_whose_name_leads_nowhere_is_named(cluster):
    def drive(spark):
        with pytest.raises(tfos.SlotsError) as caught:
            _feed(spark)
        return str(caught.value)

    with named(cluster, OWN):
        text = cluster.run(drive)
    assert "the Spark application has 1" in text
    assert "executors that can't reach the driver at one, spark.driver.host, end as they start" in text
