"""Trainings in pods that have control groups, users, quotas and read-only roots of their own."""

import json
import re

import pytest

from tests.support.commands import output_of
from tests.support.paths import ROOT
from tests.support.real_kubernetes import NAMESPACE, wait_for_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
_EPOCHS = 6


def _found(process, seconds=300):
    """Return what the program has found, the last line of its output."""
    output = output_of(process, seconds)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    assert lines, output
    return json.loads(lines[-1])


def _trained(cluster, folder, deed="none", restarts=0, act=None, **settings):
    """Run a training; while its worker 1 waits, do something to the worker's pod, whose name it gets."""
    process = cluster.program(cluster.settings(folder.name, **settings), deed, folder, restarts)
    if act is not None:
        act(wait_for_file(folder / "waiting", process, 200))
    return _found(process)


def _check_resumed(found):
    results = found["results"]
    assert {each["attempt"] for each in results.values()} == {1}
    assert {each["epochs"] for each in results.values()} <= {_EPOCHS - 3, _EPOCHS - 2}
    losses = {each["loss"] for each in results.values()}
    assert len(losses) == 1
    assert losses.pop() < 1


def test_what_is_checked_before_a_training(cluster, folder):
    process = cluster.tfos("check", cluster.settings(folder.name))
    output = output_of(process, 240)
    assert process.returncode == 0, output
    assert "10.244.0." in output


def test_a_fed_training(cluster, folder):
    results = _trained(cluster, folder)["results"]
    assert {each["epochs"] for each in results.values()} == {_EPOCHS}
    assert len({each["pod"] for each in results.values()}) == 2


def test_a_script_with_the_driver_here(cluster, folder):
    script = [ROOT / "examples/mnist/script.py", "--epochs", "8"]
    process = cluster.tfos("run", cluster.settings(folder.name), "--workers", "2", "--show", "all", *script)
    output = output_of(process, 300)
    assert process.returncode == 0, output
    found = dict(re.findall(r"\[worker:(\d)\] worker \d: accuracy ([\d.]+)", output))
    assert set(found) == {"0", "1"}, output
    assert found["0"] == found["1"]


def test_a_script_with_the_driver_in_a_pod(cluster, folder):
    """The script is in the image, and the exit code that of the driver's container."""
    driver = "spark.kubernetes.driver"
    settings = {
        **cluster.settings(folder.name),
        f"{driver}.podTemplateFile": ROOT / "deploy/kubernetes/executor.yaml",
        f"{driver}.pod.name": folder.name,
        f"{driver}.request.cores": 0.3,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "tfos",
        "spark.driver.memory": "1g",
    }
    del settings["spark.driver.host"]
    script = ["/opt/examples/mnist/script.py", "--epochs", "8"]
    words = ["--deploy-mode", "cluster", "local:///opt/tfos.py", "run", "--workers", "2", "--show", "all", *script]
    process = cluster.submit(settings, *words)
    output = output_of(process, 300)
    log = cluster.kubectl("logs", "-n", NAMESPACE, folder.name, check=False)
    assert process.returncode == 0, output
    (pod,) = cluster.pods(spark_role="driver")
    (container,) = pod["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 0, f"{output}\n{log}"
    assert set(re.findall(r"\[worker:(\d)\] worker \d: accuracy", log)) == {"0", "1"}, log
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, folder.name)


def test_a_pod_that_is_deleted(cluster, folder):
    found = _trained(cluster, folder, "wait", 1, lambda pod: cluster.kubectl("delete", "pod", "-n", NAMESPACE, pod))
    _check_resumed(found)


def test_a_node_that_is_drained(cluster, folder):
    def drain(_):
        cluster.kubectl("drain", "node", "--ignore-daemonsets", "--delete-emptydir-data", "--force")
        cluster.kubectl("uncordon", "node")

    _check_resumed(_trained(cluster, folder, "wait", 1, drain))


def test_a_pod_that_is_evicted_for_its_disk(cluster, folder):
    limit = _template_with(folder, "name: tmp\n      emptyDir: {}", "name: tmp\n      emptyDir: {sizeLimit: 200Mi}")
    found = _trained(cluster, folder, "disk", 1, **{"spark.kubernetes.executor.podTemplateFile": limit})
    _check_resumed(found)


def _template_with(folder, old, new):
    text = (ROOT / "deploy/kubernetes/executor.yaml").read_text()
    assert old in text
    template = folder / "executor.yaml"
    template.write_text(text.replace(old, new))
    return template


@pytest.mark.parametrize("deed", ["process", "container"])
def test_memory_that_is_used_up(cluster, folder, deed):
    _check_resumed(_trained(cluster, folder, deed, 1))


def test_an_error_names_what_ended_a_container(cluster, folder):
    found = _trained(cluster, folder, "container")
    assert found["type"] == "NodeError"
    assert "worker:1" in found["error"]
    assert "137" in found["error"], found["error"]


def test_a_quota_that_leaves_one_pod(cluster, folder):
    """Spark gives up the second pod: the command fails, and says why."""
    hard = {"hard": {"pods": "1"}}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": hard})
    try:
        script = ROOT / "examples/mnist/script.py"
        process = cluster.tfos("run", cluster.settings(folder.name), "--workers", "2", script)
        output = output_of(process, 200)
        assert process.returncode == 1, output
        assert "is forbidden: exceeded quota: pods" in output, output
        assert "Spark did not start" in output, output
    finally:
        cluster.kubectl("delete", "quota", "-n", NAMESPACE, "pods")


def test_two_namespaces_do_not_mix(cluster, folder):
    """An account of one namespace starts no pods in another; its error says so."""
    who = f"system:serviceaccount:{NAMESPACE}:tfos"
    assert cluster.kubectl("auth", "can-i", "create", "pods", "-n", NAMESPACE, "--as", who).strip() == "yes"
    denied = cluster.kubectl("auth", "can-i", "create", "pods", "-n", "default", "--as", who, check=False)
    assert denied.strip() == "no"
