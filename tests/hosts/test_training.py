"""Training and inference on three hosts."""

import pytest

import tensorflowonspark as tfos
from tests.support.programs import fit, small_frame


@pytest.mark.timeout(240)
def test_fit_on_three_hosts_trains_one_model(cluster):
    def drive(spark):
        with tfos.Cluster(spark, fit, {"batch_size": 10}, num_workers=3) as nodes:
            nodes.train(small_frame(spark, [40, 30, 50, 20]), timeout=120)
            hosts = [each.host for each in nodes.nodes]
            return hosts, nodes.join()

    hosts, results = cluster.run(drive)
    assert sorted(hosts) == [each.address for each in cluster.hosts]
    first, *others = results.values()
    assert sorted(sum((each["seen"] for each in results.values()), [])) == list(range(140))
    for other in others:
        assert all((one == two).all() for one, two in zip(first["weights"], other["weights"], strict=True))
