"""Feeds of executors on hosts of their own, whose processes have equal pids."""

from contextlib import contextmanager

import pytest

from tests.support.fed_cluster import APPLICATIONS, check_fed_clusters, run_driver
from tests.support.hosts import Network, own_folders
from tests.support.standalone import standalone_cluster


@contextmanager
def two_hosts(directory):
    """Start a cluster of two hosts with an executor each; yield Spark's settings, and this machine's address."""
    with Network() as network:
        members = [network.host(f"host-{number}", mounts=own_folders(directory)) for number in range(2)]
        with standalone_cluster(directory, [1, 1], "1g", members, network.address) as master:
            settings = {
                "spark.master": master,
                "spark.driver.host": network.address,
                "spark.driver.bindAddress": network.address,
                "spark.executor.cores": 1,
                "spark.executor.memory": "512m",
                "spark.ui.enabled": "false",
            }
            yield settings, network.address


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("application", APPLICATIONS)
def test_rows_reach_their_nodes_although_hosts_have_equal_pids(tmp_path, application):
    with two_hosts(tmp_path) as (settings, address):
        check_fed_clusters(settings, address)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_count_once_in_an_epoch_that_is_resumed_on_other_hosts(tmp_path, monkeypatch):
    """Spark runs a partition's task on another host than before, and a shuffle's rows come in another order."""
    monkeypatch.setenv("TFOS_TEST_SHARED", str(tmp_path))
    with two_hosts(tmp_path) as (settings, address):
        clusters = run_driver("tests.support.resumed_cluster", settings, address, seconds=280)
    assert [each["way"] for each in clusters] == ["train", "run"]
    assert all(each["once"] and each["begun"] in ([0, 5], [0, 10]) for each in clusters)
