"""What Spark's UI shows of a cluster with real nodes."""

import pytest

import tensorflowonspark as tfos
from tests.support.programs import wait_for
from tests.support.ui import jobs, stages


def program(args, ctx):
    for feed in ctx.feeds():
        assert feed.rows
        ctx.report(loss=0.25)


@pytest.mark.smoke
@pytest.mark.masters("local")
@pytest.mark.timeout(120)
def test_jobs_and_stages_say_which_cluster_they_are_of_and_what_they_do(spark):
    with tfos.Cluster(spark, program, num_workers=2) as cluster:
        label = f"program {cluster.id[:8]}"
        cluster.train(spark.range(40), validation=spark.range(4))
        cluster.train(spark.range(40))
        cluster.join()
    expected = {"launch 2 workers", "feed 0, validation rows, to 2 nodes", "feed 0 to 2 nodes", "feed 1 to 2 nodes"}
    wait_for(lambda: any("epoch 2" in job[0] for job in jobs(spark)), 10)
    own = [job for job in jobs(spark) if job[0].startswith(f"{label}: ")]
    whats = {description.removeprefix(f"{label}: ") for description, *_ in own}
    assert expected <= whats
    assert any(what.startswith("epoch 2, loss 0.25") for what in whats)
    assert {group.rpartition("-")[0] for _, group, *_ in own} == {f"tensorflowonspark-program-{cluster.id[:8]}"}
    assert expected <= set(stages(spark))


@pytest.mark.masters("local", "standalone")
@pytest.mark.timeout(120)
def test_a_held_stage_says_that_its_nodes_run(spark):
    tfos.run(spark, lambda ctx: ctx.feed().rows, num_workers=2, data=spark.range(10))
    assert "feed and run 2 workers" in stages(spark)
