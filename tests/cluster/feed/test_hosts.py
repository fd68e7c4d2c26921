"""Feeds of executors on hosts of their own, whose processes have equal pids."""

import pytest

from tests.support import hosts, ladder
from tests.support.fed_cluster import APPLICATIONS, check_fed_clusters
from tests.support.standalone import standalone_cluster


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("application", APPLICATIONS)
def test_rows_reach_their_nodes_although_hosts_have_equal_pids(tmp_path, application):
    if problem := hosts.what_is_missing():
        ladder.skip(problem)
    with hosts.Network() as network, standalone_cluster(tmp_path, [1, 1], "1g", network=network) as master:
        settings = {
            "spark.master": master,
            "spark.driver.host": network.address,
            "spark.driver.bindAddress": network.address,
            "spark.executor.cores": 1,
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
        }
        check_fed_clusters(settings, network.address)
