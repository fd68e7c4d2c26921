"""Why Spark has lost an executor: what its texts tell, and when it knows; and where the user reads it."""

import logging
import time
from threading import Event
from types import SimpleNamespace

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver import loss_reasons
from tensorflowonspark.driver.failures import Failures
from tensorflowonspark.driver.spark import lost_executors
from tensorflowonspark.driver.spark.lost_executors import LostExecutor, why_lost
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.restart_policy import RestartPolicy
from tests.support.backend import cluster_on
from tests.support.programs import wait_for
from tests.support.scripted import ScriptedBackend, fails, returns


def of_pod(code, brief="", message="", status="Error"):
    """Return Spark's description of a pod that has failed, as of its 4.3."""
    brief = brief and f"The API gave the following brief reason: {brief}"
    message = message and f"The API gave the following message: {message}"
    return f"""
The executor with id 3 exited with exit code {code}.
{brief}
{message}

The API gave the following container statuses:


\t container name: spark-kubernetes-executor
\t container image: registry/tfos:cpu
\t container state: terminated
\t container started at: 2026-11-28T09:12:31Z
\t container finished at: 2026-11-28T09:14:02Z
\t exit code: 137
\t termination reason: {status}
      """


KILLED = "137(SIGKILL, possible container OOM)"
OF_MEMORY = of_pod(KILLED, status="OOMKilled")
FULL = 'Usage of EmptyDir volume "spark-local-dir-1" exceeds the limit "1Gi". '
LOW = "The node was low on resource: {}. Threshold quantity: 308595705, available: 265968Ki. "
YARN = "Container killed by YARN for exceeding physical memory limits. 2.1 GB of 2 GB physical memory used. "
YARN += "Consider boosting spark.executor.memoryOverhead."
EXITED = "Container from a bad node: c1 on host: h7. Exit status: 143. Diagnostics: [2026-11-28 09:14]Killed\nby signal"


@pytest.mark.parametrize(
    ("reason", "shown", "advice"),
    [
        (OF_MEMORY, f"exit code {KILLED}, OOMKilled", "memoryOverhead"),
        (of_pod(KILLED), f"exit code {KILLED}", ""),
        (of_pod(KILLED, "Evicted", FULL), f"exit code {KILLED}, Evicted, {FULL.strip()}", "disk"),
        (
            of_pod("143(unexpected)", "Evicted", LOW.format("ephemeral-storage")),
            "exit code 143(unexpected), Evicted, " + LOW.format("ephemeral-storage").strip(),
            "disk",
        ),
        (
            of_pod("-1(unexpected)", "Evicted", LOW.format("memory")),
            "exit code 137, Evicted, " + LOW.format("memory").strip(),
            "memoryOverhead",
        ),
        (of_pod("-1(unexpected)", "Evicted", FULL).partition("\t")[0], f"Evicted, {FULL.strip()}", "disk"),
        (of_pod("1", "N/A", "N/A"), "exit code 1", ""),  # of Spark 2
        (YARN, YARN, "memoryOverhead"),
        (EXITED, EXITED.replace("\n", " "), ""),
        ("Command exited with code 137", "Command exited with code 137", ""),
        ("worker lost: 10.0.0.7:34567 got disassociated", "worker lost: 10.0.0.7:34567 got disassociated", "restarts"),
        ("x" * 900, "x" * 500, ""),
    ],
)
def test_what_is_told_of_it(reason, shown, advice):
    assert str(LostExecutor("3", reason, "digits-exec-3")) == f"executor 3, pod digits-exec-3: {shown}"
    found = LostExecutor("3", reason).advice
    assert advice in found
    assert bool(found) == bool(advice)


def test_nothing_is_told_where_spark_knows_nothing():
    assert str(LostExecutor("3", "")) == "executor 3"


@pytest.mark.parametrize(
    ("reason", "preemption"),
    [
        ("Executor decommission: spot instance is taken", True),
        ("Executor decommission: worker decommissioned because of kill request from HTTP endpoint", True),
        ("Executor killed by driver.", True),
        ("worker lost: 10.0.0.7:34567 got disassociated", True),
        ("Command exited with code 137", False),
        ("Remote RPC client disassociated. Likely due to containers exceeding thresholds, or network issues.", False),
        ("Executor heartbeat timed out after 125000 ms", False),
        ("Container container_1_2_3 on host: h7 was preempted.", True),
        (
            "Executor for container c1 exited because of a YARN event (e.g., preemption) and not because",
            True,
        ),
        ("Container from a bad node: c1 on host: h7. Diagnostics: Container released on a *lost* node", True),
        (YARN, False),
        ("The executor with id 3 was deleted by a user or the framework.", True),
        (OF_MEMORY, False),
        (of_pod("1", "Preempting"), True),
        (of_pod("1", "Evicted", FULL), False),
    ],
)
def test_what_is_a_preemption(reason, preemption):
    assert LostExecutor("3", reason).preempted is preemption


# ---- when Spark knows it


def option(value):
    return SimpleNamespace(isDefined=lambda: value is not None, get=lambda: value)


class Spark:
    """In place of a SparkContext: executors by id, each with the time at which it is noticed, and known, to have ended.

    Times are seconds from now; None is never. `ago` is the time since which Spark has known it.
    """

    def __init__(self, executors, **settings):
        self.begin, self.executors, self.asked = time.monotonic(), executors, []
        store, backend = SimpleNamespace(executorSummary=self.summary), SimpleNamespace(isExecutorActive=self.is_active)
        conf = SimpleNamespace(get=lambda name, default: settings.get(name, default))
        scala = SimpleNamespace(statusStore=lambda: store, schedulerBackend=lambda: backend, conf=lambda: conf)
        self._jsc = SimpleNamespace(sc=lambda: scala)

    def is_past(self, seconds):
        return seconds is not None and time.monotonic() - self.begin > seconds

    def is_active(self, number):
        return not self.is_past(self.executors[number]["noticed"])

    def summary(self, number):
        found = self.executors[number]
        when = SimpleNamespace(getTime=lambda: int((time.time() - found.get("ago", 0)) * 1000))
        return SimpleNamespace(
            isActive=lambda: not self.is_past(found["known"]),
            removeTime=lambda: option(when),
            removeReason=lambda: option(found.get("reason")),
        )


def ended(reason=OF_MEMORY, noticed=0.0, known=0.0, **more):
    return {"reason": reason, "noticed": noticed, "known": known, **more}


RUNS = {"noticed": None, "known": None}
PODS = {"spark.kubernetes.executor.podNamePrefix": "digits-1f2e"}


def test_a_pod_is_named_as_spark_names_it():
    spark = Spark({"3": ended()}, **PODS)
    assert why_lost(spark, "3") == [LostExecutor("3", OF_MEMORY, "digits-1f2e-exec-3")]
    other = Spark({"3": ended()}, **PODS, **{"spark.kubernetes.allocation.pods.allocator": "statefulset"})
    assert why_lost(other, "3") == [LostExecutor("3", OF_MEMORY)]


def test_the_reason_is_waited_for_and_so_is_that_of_others_that_end():
    spark = Spark({"1": ended(known=0.3), "2": ended("b", known=0.5), "3": RUNS, "4": ended("c", ago=60)})
    assert [(each.number, each.reason) for each in why_lost(spark, "1", ["2", "3", "4"])] == [
        ("1", OF_MEMORY),
        ("2", "b"),
    ]
    assert time.monotonic() - spark.begin < 2


def test_others_are_waited_for_less_long(monkeypatch):
    monkeypatch.setattr(lost_executors, "_OTHERS_SECONDS", 0.3)
    spark = Spark({"1": ended(known=0.1), "2": ended(known=None), "3": ended("c")})
    assert [each.number for each in why_lost(spark, "1", ["2", "3"])] == ["1", "3"]
    assert time.monotonic() - spark.begin < 2


def test_one_that_runs_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(lost_executors, "_NOTICE_SECONDS", 0.2)
    spark = Spark({"1": RUNS, "2": ended("b")})
    assert why_lost(spark, "1", ["2"]) == [LostExecutor("2", "b")]
    assert time.monotonic() - spark.begin < 2


def test_a_cluster_manager_that_never_says_why_is_waited_for_no_longer_than_allowed(monkeypatch):
    monkeypatch.setattr(lost_executors, "REASON_SECONDS", 0.3)
    spark = Spark({"1": ended(known=None)})
    assert why_lost(spark, "1") == []
    assert time.monotonic() - spark.begin < 2


# ---- where the user reads it

BOTH = (
    f"worker:0 on here failed: it is gone (executor 0: exit code {KILLED}, OOMKilled); at the same time ended the "
    f"executors of worker:1 on here (executor 1: exit code {KILLED}, Evicted, {FULL.strip()})"
)
GONE = fails(FailureKind.EXECUTOR_LOST, "it is gone", 0.1)


def fails_once(node):
    if node.plan.config.attempt:
        returns("done")(node)
    else:
        GONE(node)


def killed(*scripts, seconds=0.3):
    backend = ScriptedBackend(*scripts)
    backend.lost = {"0": OF_MEMORY, "1": of_pod(KILLED, "Evicted", FULL)}
    backend.reason_seconds = seconds
    return backend


def failures_of(cluster):
    return [each.text for each in cluster.metrics().events if each.kind == "failure"]


def test_the_error_has_it_and_the_nodes_end_before_it_is_known(monkeypatch):
    backend, known = killed(GONE, lambda node: None, seconds=0.0), Event()
    found = backend.why_lost
    monkeypatch.setattr(backend, "why_lost", lambda *which: (known.wait(30), found(*which))[1])
    with pytest.raises(tfos.NodeError) as caught, cluster_on(backend, num_workers=2) as cluster:
        wait_for(backend.nodes[1].stopped.is_set, 30)
        known.set()
        cluster.join()
    assert str(caught.value).splitlines()[0] == BOTH
    assert caught.value.cause == "executor_lost"
    assert "spark.executor.memoryOverhead" in caught.value.advice
    assert "a larger volume for spark-local-dir-1" in caught.value.advice
    assert failures_of(cluster) == [BOTH]


def test_an_error_of_the_driver_while_it_explains_a_failure_is_no_hang(monkeypatch):
    monkeypatch.setattr(Failures, "settle", lambda *_: 1 / 0)
    with pytest.raises(tfos.NodeError, match="worker:0 on here failed: it is gone"):
        with cluster_on(killed(GONE, lambda node: None), num_workers=2) as cluster:
            cluster.join()


def test_so_has_the_line_of_a_restart(caplog):
    backend = killed(fails_once, returns("done"))
    with cluster_on(backend, num_workers=2, restarts=1) as cluster, caplog.at_level(logging.WARNING):
        assert cluster.join() == {"worker:0": "done", "worker:1": "done"}
    assert f"{BOTH}\nAll nodes are started again (restart 1 of 1)" in caplog.text
    assert failures_of(cluster) == [BOTH]


def test_so_has_that_of_a_node_that_is_started_again_alone(caplog):
    backend = killed(fails_once, lambda node: (time.sleep(1), returns("done")(node)))
    policy = RestartPolicy(1, scope="node", backoff=0)
    with cluster_on(backend, num_workers=2, restarts=policy) as cluster, caplog.at_level(logging.WARNING):
        assert cluster.join() == {"worker:0": "done", "worker:1": "done"}
    assert f"{BOTH}\nIt is started again, while the others continue (restart 1 of 1)" in caplog.text
    assert failures_of(cluster) == [BOTH]


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_cluster_that_ends_waits_for_no_reason(seconds, monkeypatch):
    monkeypatch.setattr(loss_reasons, "REASON_SECONDS", 60.0)
    backend = killed(GONE, lambda node: None, seconds=seconds)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), cluster_on(backend, num_workers=2) as cluster:
        wait_for(backend.nodes[1].stopped.is_set, 30)
        raise KeyboardInterrupt
    assert time.monotonic() - begin < 20
    (text,) = failures_of(cluster)
    assert text.startswith("worker:0 on here failed: it is gone")


def test_spark_that_does_not_answer_is_waited_for_no_longer_than_allowed(monkeypatch):
    monkeypatch.setattr(loss_reasons, "REASON_SECONDS", 0.3)
    backend = killed(GONE, lambda node: None, seconds=30.0)
    with pytest.raises(tfos.NodeError) as caught, cluster_on(backend, num_workers=2) as cluster:
        cluster.join()
    assert str(caught.value).splitlines()[0] == "worker:0 on here failed: it is gone"
