"""`Cluster` over Spark Connect: its driver's part runs in a Spark task."""

import pytest

import tensorflowonspark as tfos

pytestmark = [pytest.mark.masters("connect"), pytest.mark.timeout(240)]


def test_x(spark):
    def program(args, ctx):
        found = []
        for feed in ctx.feeds():
            found.append(sum(len(batch["id"]) for batch in feed.dataset(8)))
        return found
    with tfos.Cluster(spark, program, num_workers=2) as cluster:
        cluster.train(spark.range(100))
        cluster.train(spark.range(50))
        print(cluster.metrics().nodes[0])
        results = cluster.join()
    print(results)
