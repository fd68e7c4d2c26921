"""The progress of a training in Spark's UI."""

import json
import time

import pytest

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.metrics.records import EpochMetrics
from tensorflowonspark.driver.nodes import Roster
from tensorflowonspark.driver.spark.jobs import SparkJob
from tensorflowonspark.driver.spark.naming import described
from tensorflowonspark.driver.spark.progress_jobs import ProgressJobs
from tests.support.commands import run_python
from tests.support.ui import jobs

pytestmark = pytest.mark.smoke

_PAGE = """
import json, sys, time, urllib.request
from pyspark.sql import SparkSession
from tensorflowonspark.driver.metrics.records import ClusterEvent, EpochMetrics
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.spark.progress_jobs import ProgressJobs

spark = SparkSession.builder.master("local[1]").config("spark.ui.port", "0").getOrCreate()
context = spark.sparkContext
store = MetricsStore("train")
store.cluster = "ab12cd34ef56"
shown = ProgressJobs(context, store)
shown.epoch_ended(EpochMetrics(2, time.time(), 1.0, {"loss": 0.5}))
shown.happened(ClusterEvent(time.time(), "failure", "worker:1 on <h7> failed: it ran out of memory"))
time.sleep(2)
read = lambda path: urllib.request.urlopen(context.uiWebUrl + path, timeout=20).read().decode()
jobs = json.loads(read(f"/api/v1/applications/{context.applicationId}/jobs"))
print(json.dumps({"jobs": jobs, "page": read("/jobs/"), "job": read("/jobs/job/?id=0")}))
spark.stop()
"""


@pytest.fixture
def store():
    made = MetricsStore("train")
    made.begin_attempt("ab12cd34ef56", Roster(ClusterSpec(num_workers=2)).nodes, 0, 0, lambda: None)
    yield made
    made.end(failed=False, text="the cluster has ended")


def shown_by(spark, cluster="ab12cd34"):
    return [description for description, *_ in jobs(spark) if f" {cluster}: " in description]


def within(seconds, found):
    end = time.monotonic() + seconds
    while not (result := found()) and time.monotonic() < end:
        time.sleep(0.05)
    return result


def epoch(number, **values):
    return EpochMetrics(number, time.time(), 1.0, values)


@pytest.mark.slow
@pytest.mark.masters("local")
def test_an_epoch_is_a_job_without_tasks_also_while_all_slots_are_taken(spark, store):
    def occupy(batches):
        time.sleep(20)
        yield from batches

    busy = SparkJob(
        spark, "occupies all slots", spark.range(0, 4, 1, 4).mapInArrow(occupy, "id long").collect, lambda: None
    )
    assert within(20, lambda: busy.tasks()[1] == 4), busy.error
    store.events.subscribe(ProgressJobs(spark.sparkContext, store))
    store.events._call(lambda each: each.epoch_ended(epoch(2, loss=0.12345, val_loss=float("nan"))))
    text = "train ab12cd34: epoch 3, loss 0.1235, val_loss nan"
    assert within(10, lambda: text in shown_by(spark))
    assert not busy.ended
    found = next(job for job in jobs(spark) if job[0] == text)
    assert found[1].startswith("tensorflowonspark-train-ab12cd34-")
    assert found[2:] == ("SUCCEEDED", 0)
    busy.cancel()
    busy.wait(20)


@pytest.mark.masters("local")
def test_of_many_short_epochs_the_first_and_the_last_are_shown(spark, store):
    store.cluster = "short000ef56"
    store.events.subscribe(ProgressJobs(spark.sparkContext, store))
    for number in range(500):
        store.events._call(lambda each, number=number: each.epoch_ended(epoch(number, loss=1.0 / (number + 1))))
    store.end(failed=False, text="the cluster has ended")
    expected = ["train short000: epoch 500, loss 0.002", "train short000: epoch 1, loss 1"]
    assert within(10, lambda: shown_by(spark, "short000") == expected)


@pytest.mark.masters("local")
def test_a_failure_is_shown_after_the_last_epoch(spark, store):
    store.cluster = "fail0000ef56"
    store.events.subscribe(ProgressJobs(spark.sparkContext, store))
    for number in range(3):
        store.events._call(lambda each, number=number: each.epoch_ended(epoch(number, loss=2.0)))
    store.events.note("failure", "worker:1 on h7 failed: it ran out of memory", "worker:1")
    assert within(10, lambda: len(shown_by(spark, "fail0000")) == 3)
    failed = "train fail0000: failed: worker:1 on h7 failed: it ran out of memory"
    assert shown_by(spark, "fail0000")[:2] == [failed, "train fail0000: epoch 3, loss 2"]


def test_an_application_that_has_ended_is_no_error(store):
    class Context:
        def __getattr__(self, name):
            raise RuntimeError("the SparkContext was stopped")

    ProgressJobs(Context(), store).epoch_ended(epoch(0, loss=1.0))


@pytest.mark.masters("local")
def test_jobs_of_a_thread_are_described_unless_the_user_has(spark):
    with described(spark, "adapt words"):
        spark.range(3).count()
    spark.sparkContext.setJobDescription("my own")
    with described(spark, "adapt numbers"):
        spark.range(3).count()
    spark.sparkContext.setJobDescription(None)
    spark.range(3).count()
    # one count may be several jobs
    assert within(10, lambda: {"adapt words", "my own"} <= {job[0] for job in jobs(spark)[:9]})
    assert "adapt numbers" not in {job[0] for job in jobs(spark)}
    assert jobs(spark)[0][0] != "my own"


@pytest.mark.slow
def test_the_page_of_jobs_and_its_interface_show_epochs_and_failures():
    found = json.loads(run_python(_PAGE, SPARK_LOCAL_IP="127.0.0.1").splitlines()[-1])
    assert [job["description"] for job in found["jobs"]] == [
        "train ab12cd34: failed: worker:1 on <h7> failed: it ran out of memory",
        "train ab12cd34: epoch 3, loss 0.5",
    ]
    assert {job["numTasks"] for job in found["jobs"]} == {0}
    assert "train ab12cd34: epoch 3, loss 0.5" in found["page"]
    assert "&lt;h7&gt;" in found["page"]
    assert "SUCCEEDED" in found["job"]
