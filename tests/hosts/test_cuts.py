"""Breaks of the network, after which it is whole again: training goes on, or the error names the host."""

import time

import pytest

import tensorflowonspark as tfos
from tests.support.host_cluster import host_cluster, slow_fit, slow_rows


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A cluster whose driver is on the first host, and whose workers are on the two others."""
    with host_cluster(tmp_path_factory.mktemp("pair"), workers=(1, 2)) as cluster:
        yield cluster


def train(args, ctx):
    import tensorflow as tf

    return slow_fit(ctx, tf.distribute.MultiWorkerMirroredStrategy())


def drive(spark, program):
    with tfos.Cluster(spark, program, num_workers=2, show="all") as cluster:
        cluster.train(slow_rows(spark))
        return cluster.join()


def cut_off(pair, seconds, drive, *arguments):
    """Start a driver's program, and cut the last host off for a time when it is ready; return it."""
    driver = pair.start(drive, *arguments)
    driver.wait_for("ready", 200)
    pair.network.cut(pair.hosts[2])
    time.sleep(seconds)
    pair.network.heal(pair.hosts[2])
    return driver


@pytest.mark.timeout(300)
def test_a_training_in_step_outlives_a_cut_of_five_seconds(pair):
    results = cut_off(pair, 5, drive, train).result()
    assert results["worker:0"] == results["worker:1"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_training_in_step_that_a_longer_cut_ends_names_the_host(pair):
    driver = cut_off(pair, 22, drive, train)
    with pytest.raises(tfos.NodeError) as caught:
        driver.result()
    text = str(caught.value).partition("\n\n")[0]
    assert "its TensorFlow has lost worker:" in text
    assert "which runs: the network between them was broken" in text
    assert "Restart your program" not in text


def average(args, ctx):
    import tensorflow as tf

    rounds = tfos.keras.DiLoCo(every=4)
    weights = slow_fit(ctx, tf.distribute.get_strategy(), rounds)
    return rounds.rounds, weights


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_that_is_cut_off_for_a_while_stays_in_its_rounds(pair):
    driver = cut_off(pair, 15, drive, average)
    results = driver.result()
    assert len(results) == 2
    assert results["worker:0"] == results["worker:1"]
    assert "begins without" not in driver.output
    assert "failed" not in driver.output


def take(args, ctx):
    return [int(each) for batch in ctx.batches(100, features=["id"]) for each in batch["id"]]


def feed_slowly(spark):
    def wait(batches):
        for batch in batches:
            time.sleep(0.5)
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    data = spark.range(0, 2000, 1, 4)
    data = data.selectExpr("id", "array_repeat(id, 1000) as padding").mapInArrow(wait, "id long, padding array<long>")
    with tfos.Cluster(spark, take, num_workers=2) as cluster:
        print("ready", flush=True)
        cluster.train(data)
        return cluster.join()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_count_once_that_are_fed_during_a_cut(pair):
    results = cut_off(pair, 15, feed_slowly).result()
    assert sorted(sum(results.values(), [])) == list(range(2000))
