"""Rows dealt out to all workers before they are fed: each once, to all, and as before when a task runs again."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.columns import mixed_order, split_places
from tensorflowonspark.driver.feed.feed_settings import FeedSettings
from tensorflowonspark.driver.spark.repartition import repartitioned, round_robin, spread

pytestmark = pytest.mark.masters("local")
WORKERS = 3


@pytest.fixture
def sorted_rows(spark):
    return spark.range(0, 3000, 1, 4).select("id", (f.col("id") / 300).cast("int").alias("label"))


def dealt(frame):
    """Return the ids of each partition."""
    found = defaultdict(list)
    for row in spread(frame, WORKERS).select("id", f.spark_partition_id().alias("partition")).collect():
        found[row.partition].append(row.id)
    return {partition: sorted(ids) for partition, ids in found.items()}


@pytest.mark.smoke
def test_every_row_is_in_one_partition_and_every_label_in_all(sorted_rows):
    partitions = dealt(sorted_rows)
    assert len(partitions) % WORKERS == 0
    assert sorted(sum(partitions.values(), [])) == list(range(3000))
    mean = 3000 / len(partitions)
    for ids in partitions.values():
        assert len(ids) == pytest.approx(mean, abs=4)
        labels = Counter(each // 300 for each in ids)
        assert len(labels) == 10
        assert max(labels.values()) < 0.3 * len(ids)


@pytest.mark.smoke
def test_a_task_that_runs_again_deals_its_rows_out_as_before(spark, sorted_rows):
    shuffled = sorted_rows.sortWithinPartitions(f.rand(7))  # the same rows of each partition, in another order
    assert dealt(sorted_rows) == dealt(shuffled)


def in_order(frame, partitions):
    """Return the ids of each partition, in their order."""
    rows = repartitioned(frame, partitions).select(f.spark_partition_id().alias("partition"), "id").collect()
    return [[row.id for row in rows if row.partition == number] for number in range(partitions)]


def test_a_partition_has_its_rows_in_one_order_whichever_way_they_come(sorted_rows):
    odd_names = sorted_rows.withColumn("a.`b` *", f.array("id")).withColumn("*", f.lit(None)).withColumn("V", f.lit(1))
    ids = in_order(odd_names.withColumnRenamed("label", "v"), 2)
    assert sorted(sum(ids, [])) == list(range(3000))
    assert in_order(sorted_rows, 2) == in_order(sorted_rows.sortWithinPartitions(f.rand(7)), 2)


def test_a_single_partition_has_the_rows_in_their_own_order(sorted_rows):
    assert in_order(sorted_rows.withColumn("place", f.lit(7)), 1) == [list(range(3000))]


def test_an_unknown_shuffle_is_refused():
    with pytest.raises(tfos.SpecError, match="global_shuffle='local': expected True or False"):
        FeedSettings(global_shuffle="local")


@pytest.mark.parametrize("tasks", [3, pytest.param(2, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)])
def test_a_rows_place_says_which_task_it_is_dealt_to_and_where_it_comes(spark, sorted_rows, tasks):
    """The same whenever Spark computes the rows, and the places do not depend on the number of tasks."""

    def found(frame, tasks):
        spread = round_robin(frame, tasks).select(f.spark_partition_id().alias("task"), "*")
        return [(row.task, row.place, row.hash, row.id) for row in spread.collect()]

    rows = found(sorted_rows.repartition(7, "id"), tasks)
    assert rows == found(sorted_rows.repartition(7, "id").sortWithinPartitions(f.rand(7)), tasks)
    assert sorted(rows, key=lambda row: row[1:])[0][1:] in {
        row[1:] for row in found(sorted_rows.repartition(7, "id"), 4)
    }
    assert sorted(row[3] for row in rows) == list(range(3000))
    first = {}
    for task in range(tasks):
        places = np.array([row[1] for row in rows if row[0] == task])
        assert len(places) == pytest.approx(3000 / tasks, abs=7)
        assert np.array_equal(mixed_order(places), np.arange(len(places)))
        owners, own = split_places(places)
        for partition in range(7):
            numbers = np.sort(own[owners == partition])
            assert np.array_equal(numbers, np.arange(numbers[0], numbers[-1] + 1, tasks))
            first[task, partition] = int(numbers[0])
    for partition in range(7):
        assert sorted(first[task, partition] for task in range(tasks)) == list(range(tasks))


def test_rows_of_another_split_have_the_last_places_of_their_partition(sorted_rows):
    """So the others' places have no gaps, and a task's are known from their number."""
    frame = sorted_rows.withColumn("other one", f.col("id") % 5 == 0)
    rows = round_robin(frame, 3, "other one").collect()
    for partition in range(4):
        own = [row for row in rows if split_places(row.place)[0] == partition]
        others = [row["other one"] for row in sorted(own, key=lambda row: row.place)]
        assert others == sorted(others)
        assert 0 < sum(others) < len(others)
