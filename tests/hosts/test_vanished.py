"""A host that vanishes: without a notice, and with all that runs on it. Spark takes it for alive for a minute."""

import pytest

import tensorflowonspark as tfos
from tests.support.host_cluster import slow_fit, slow_rows


def train(args, ctx):
    import tensorflow as tf

    callback = ctx.checkpoint(args["checkpoints"]).callback(every=5)
    weights = slow_fit(ctx, tf.distribute.MultiWorkerMirroredStrategy(), callback)
    return ctx.attempt, ctx.host, weights


def drive(spark, args):
    with tfos.Cluster(spark, train, args, num_workers=2, restarts=1, logs=tfos.Logs(show="all")) as cluster:
        print("placed", *(each.host for each in cluster.nodes), flush=True)
        cluster.train(slow_rows(spark))
        return cluster.join()


@pytest.mark.timeout(400)
def test_a_restart_does_not_use_the_host_that_has_vanished(cluster):
    """The driver is on a host of its own; of three workers' hosts one is spare."""
    driver = cluster.start(drive, {"checkpoints": str(cluster.shared / "checkpoints")}, seconds=300)
    driver.wait_for("ready", 200)
    (placed,) = [line for line in driver.output.splitlines() if line.startswith("placed")]
    number = next(n for n, host in enumerate(cluster.hosts) if n and host.address in placed.split())
    gone = cluster.hosts[number]
    cluster.network.kill(gone)
    try:
        results = driver.result()
    finally:
        cluster.revive(number)
    line = f"All nodes are started again, without {gone.address}, which does not answer (restart 1 of 1)"
    assert line in driver.output
    (attempt, host, weights), (_, other, same) = results.values()
    assert attempt == 1
    assert gone.address not in (host, other)
    assert weights == same
