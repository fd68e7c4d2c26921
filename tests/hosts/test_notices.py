"""A host that gives notice, as a cloud does, and then vanishes."""

import json
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.host_cluster import slow_fit

NOTICE = "/tmp/notice"


def train(args, ctx):
    import tensorflow as tf

    if ctx.attempt and ctx.index == 0:
        print("again", *ctx.cluster["worker"], flush=True)
    checkpoint = ctx.checkpoint(args["checkpoints"])
    weights = slow_fit(ctx, tf.distribute.MultiWorkerMirroredStrategy(), checkpoint.callback())
    places = [(each.epoch, each.batch) for each in checkpoint._store.complete()]
    return ctx.attempt, ctx.host, places, weights


def drive(spark, args):
    settings = {"nodes": tfos.Nodes(notice=NOTICE), "logs": tfos.Logs(show="all")}
    with tfos.Cluster(spark, train, args, num_workers=2, restarts=1, **settings) as cluster:
        print("placed", *(each.host for each in cluster.nodes), flush=True)
        rows = spark.range(0, 400, 1, 4).selectExpr("array(id % 2, id % 3, id % 5, id % 7) as x", "float(id % 2) as y")
        cluster.train(rows)
        events = [each.kind for each in cluster.metrics().events]
        return cluster.join(), events


@pytest.mark.timeout(400)
def test_a_training_leaves_a_host_that_goes(cluster):
    """The driver is on a host of its own; of three workers' hosts one is spare."""
    unbroken, _ = cluster.run(drive, {"checkpoints": str(cluster.shared / "unbroken")}, seconds=200)
    driver = cluster.start(drive, {"checkpoints": str(cluster.shared / "broken")}, seconds=200)
    driver.wait_for("ready", 200)
    (placed,) = [line for line in driver.output.splitlines() if line.startswith("placed")]
    number = next(n for n, host in enumerate(cluster.hosts) if n and host.address in placed.split())
    goes = cluster.hosts[number]
    until = datetime.now(timezone.utc) + timedelta(seconds=30)
    goes.path(NOTICE).write_text(json.dumps({"action": "terminate", "time": until.isoformat()}))
    driver.wait_for("] again", 100)
    cluster.network.kill(goes)
    try:
        results, events = driver.result()
    finally:
        cluster.revive(number)
    assert f"on {goes.address}: the host goes in " in driver.output
    assert f"All nodes are started again, without {goes.address}, which goes (preemption 1 of 10)" in driver.output
    assert [each for each in events if each in ("notice", "restart")] == ["notice", "restart"]
    (attempt, host, places, weights), (_, other, _, same) = results.values()
    assert attempt == 1
    assert goes.address not in (host, other)
    ((epoch, batch),) = [place for place in places if place[1]]
    assert epoch == 0
    assert batch > 10
    assert weights == same
    for one, other in zip(weights, unbroken["worker:0"][-1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
