# ruff: noqa: N802, N815 - names of Spark's
"""Waiting for executors that an application's settings ask for; test_late_executors waits for real ones."""

import logging
import sys
import time
from types import SimpleNamespace

import pytest

from tensorflowonspark.driver.spark import resources
from tensorflowonspark.driver.spark.dynamic import allow_barrier_stages
from tensorflowonspark.driver.spark.gpu_profiles import gpu_profile
from tensorflowonspark.driver.spark.jobs import stage_error
from tensorflowonspark.driver.spark.resources import find_slots, most_slots
from tensorflowonspark.errors import FeedError, SlotsError, SpecError
from tensorflowonspark.supervisor.host import advertised_address, configured_address


class Application:
    """A SparkContext, and what it reaches in the JVM: so many slots from so many seconds on."""

    applicationId = "spark-7"

    def __init__(self, master, comes, executors=(), dynamic=False, **settings):
        self.master = master
        self._comes = comes
        self._executors = executors
        self._dynamic = dynamic
        self._settings = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
        self._begin = time.monotonic()
        self._jsc = self

    def getConf(self):
        return self._settings

    def sc(self):
        return self

    resourceProfileManager = defaultResourceProfile = getExecutorMemoryStatus = sc
    executorAllocationManager = statusStore = sc

    def isDefined(self):
        return self._dynamic

    def executorList(self, _active_only):
        return Summaries(self._executors)

    def maxNumConcurrentTasks(self, _profile):
        now = time.monotonic() - self._begin
        return max((count for seconds, count in self._comes.items() if seconds <= now), default=0)

    def size(self):
        return self.maxNumConcurrentTasks(None) + 1


class Summaries(list):
    """Executors as Spark lists them: for each its cores, and the seconds in which it was added and removed."""

    def size(self):
        return len(self)

    def apply(self, number):
        cores, added, removed = self[number]
        return SimpleNamespace(
            totalCores=lambda: cores,
            addTime=lambda: SimpleNamespace(getTime=lambda: added),
            removeTime=lambda: SimpleNamespace(
                isDefined=lambda: removed is not None, get=lambda: SimpleNamespace(getTime=lambda: removed)
            ),
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A second is a sixtieth of one, and passes only where somebody sleeps."""
    passed = [0.0]
    played = SimpleNamespace(monotonic=lambda: sum(passed), sleep=passed.append)
    for module in (resources, sys.modules[__name__]):
        monkeypatch.setattr(module, "time", played)
    for name in ("_SETTLING_SECONDS", "_MORE_SECONDS", "_CHECK_SECONDS", "_FIRST_REPORT_SECONDS", "_REPORT_SECONDS"):
        monkeypatch.setattr(resources, name, getattr(resources, name) / 60)


POD = {"executor_instances": "2", "executor_cores": "1"}


@pytest.mark.parametrize(
    "settings",
    [
        {"master": "k8s://https://api:6443", "comes": {0: 1, 0.3: 2}, **POD},
        {"master": "k8s://https://api:6443", "comes": {0.3: 2}},  # two are what Spark asks for by itself
        {"master": "yarn", "comes": {0: 1, 0.3: 2}},
        {"master": "spark://m:7077", "comes": {0: 1, 0.3: 2}, "cores_max": "2"},
        {"master": "local-cluster[2,1,1024]", "comes": {0: 1, 0.3: 2}},
        {"master": "spark://m:7077", "comes": {0.3: 2}},  # none yet
        {"master": "spark://m:7077", "comes": {0: 1, 0.3: 2}, "had": 2},  # one is being replaced
        {"master": "spark://m:7077", "comes": {0: 1, 0.3: 2}, "executors": [(1, 0, 7), (1, 3, None)]},  # one was lost
        {"master": "spark://m:7077", "comes": {0: 1, 0.3: 2}, "dynamic": True},
        {"master": "yarn", "comes": {0.3: 2}, "dynamic": True, "dynamicAllocation_maxExecutors": "2"},
    ],
)
def test_executors_that_were_asked_for_are_waited_for(settings, caplog):
    had = settings.get("had", 0)
    application = Application(**{name: value for name, value in settings.items() if name != "had"})
    assert find_slots(application, 2, 2, 10.0, had) == 2
    assert caplog.records
    assert all(each.levelno == logging.WARNING for each in caplog.records)
    assert "waiting for task slots: " in caplog.messages[0]
    assert "of 2 are there" in caplog.messages[0]
    assert "(start_timeout)" in caplog.messages[0]


@pytest.mark.parametrize(
    ("settings", "needed", "seconds", "words"),
    [
        ({"master": "local[2]", "comes": {0: 2}}, 3, 0.3, "ask for a larger master"),
        ({"master": "k8s://a", "comes": {0: 2}, **POD}, 3, 0.9, "2 executors of 1 cores, and 2 .*executor.instances"),
        ({"master": "spark://m:7077", "comes": {0: 2}}, 3, 0.9, "as many executors as it gives, and 2 .*cores.max"),
        ({"master": "k8s://a", "comes": {0: 1}, **POD}, 2, 2.2, "and 1 have .*kubectl.*spark-7.*raise start_timeout"),
        ({"master": "yarn", "comes": {}, **POD}, 2, 2.2, "and 0 have registered .*resource manager.*spark-7"),
        ({"master": "spark://m:7077", "comes": {}}, 2, 2.2, "and 0 have .*raise start_timeout"),
        (  # the second was the first one's replacement
            {"master": "spark://m:7077", "comes": {0: 1}, "executors": [(1, 0, 7), (1, 8, None)]},
            2,
            0.9,
            "as many executors as it gives, and 1 have",
        ),
        (
            {"master": "yarn", "comes": {}, "dynamic": True, "dynamicAllocation_maxExecutors": "2"},
            3,
            0.3,
            r"dynamic allocation \(at most 2: spark.dynamicAllocation.maxExecutors\), .*: raise spark.dynamicAll",
        ),
        (
            {"master": "k8s://a", "comes": {0: 1}, "dynamic": True},
            2,
            2.2,
            "executors by dynamic allocation, and 1 .*kub",
        ),
    ],
)
def test_too_few_slots_are_an_error_when_no_more_can_come(settings, needed, seconds, words):
    begin = time.monotonic()
    with pytest.raises(SlotsError, match=words):
        find_slots(Application(**settings), needed, needed, 0.6)
    assert time.monotonic() - begin < seconds


def test_more_than_are_needed_are_not_waited_for():
    begin = time.monotonic()
    assert find_slots(Application("k8s://a", {0: 2}, executor_instances="8", executor_cores="1"), 2, 8, 60.0) == 2
    assert time.monotonic() - begin < 2


def test_dynamic_allocation_is_named_where_no_cluster_can_run_under_it():
    assert "set spark.dynamicAllocation.enabled=false" in str(
        stage_error(RuntimeError("[SPARK-24942]: Barrier ..."), feeds=False)
    )


def test_rows_are_not_at_fault_if_an_executor_is_lost():
    assert isinstance(stage_error(RuntimeError("a value is missing"), feeds=True), FeedError)
    assert "barrier stage" in str(stage_error(RuntimeError("ExecutorLostFailure (executor 3 exited)"), feeds=True))


def test_the_setting_is_false_while_any_barrier_stage_runs():
    settings = {"spark.dynamicAllocation.enabled": "true"}
    conf = SimpleNamespace(get=settings.get, set=settings.__setitem__)
    scala = SimpleNamespace(conf=lambda: conf)
    context = SimpleNamespace(applicationId="a", _jsc=SimpleNamespace(sc=lambda: scala))
    with allow_barrier_stages(context):
        with pytest.raises(ValueError, match="x"), allow_barrier_stages(context):
            assert settings == {"spark.dynamicAllocation.enabled": "false"}
            raise ValueError("x")
        assert settings == {"spark.dynamicAllocation.enabled": "false"}
    assert settings == {"spark.dynamicAllocation.enabled": "true"}


def test_gpus_that_executors_do_not_have_are_refused_with_what_they_need():
    with pytest.raises(SpecError, match=r"gpus_per_node=1: on local\[2\] Spark assigns no GPUs to tasks; leave it out"):
        gpu_profile(Application("local[2]", {}), 1)


def test_a_node_has_the_host_that_spark_reports(monkeypatch):
    for name in ("SPARK_EXECUTOR_POD_IP", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)
    command = ["java", "-cp", "x", "KubernetesExecutorBackend", "--hostname", "127.0.0.7", "--cores", "1"]
    assert (configured_address(), advertised_address(command)) == ("", "127.0.0.7")
    assert advertised_address([*command[:5], "localhost"]) == ""  # as Debian's own name of a host
    assert advertised_address([*command[:5], "no.such.host.invalid"]) == ""
    assert advertised_address(command[:4]) == ""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert configured_address() == "127.0.0.1"
    monkeypatch.setenv("SPARK_LOCAL_IP", "[fd77::3]")  # as Spark wants it
    assert configured_address() == "fd77::3"
    monkeypatch.setenv("SPARK_EXECUTOR_POD_IP", "10.1.0.7")
    assert configured_address() == "10.1.0.7"
    monkeypatch.setenv("SPARK_EXECUTOR_POD_IP", "0.0.0.0")
    assert configured_address() == "fd77::3"


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"dynamicAllocation_maxExecutors": "4", "executor_cores": "2"}, 8),
        ({"dynamicAllocation_maxExecutors": "1", "executor_cores": "1"}, 3),
        ({}, sys.maxsize),
    ],
)
def test_dynamic_allocation_gives_as_many_slots_as_it_may(settings, most):
    assert most_slots(Application("yarn", {0: 3}, dynamic=True, **settings), None, 3) == most
