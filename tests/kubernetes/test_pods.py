"""Trainings in pods that have control groups, users, quotas and read-only roots of their own."""

import json
import re
import shutil

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
    claim, driver = "spark.kubernetes.driver.volumes.persistentVolumeClaim.shared", "spark.kubernetes.driver"
    staging = folder / "staging"
    settings = {
        **cluster.settings(folder.name),
        f"{claim}.options.claimName": "shared",
        f"{claim}.mount.path": cluster.shared,
        f"{driver}.podTemplateFile": _as_root_of_the_staging(folder),
        f"{driver}.pod.name": "driver-of-a-script",
        f"{driver}.request.cores": 0.3,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "tfos",
        "spark.driver.memory": "1g",
    }
    del settings["spark.driver.host"]
    staging.mkdir()
    staging.chmod(0o777)
    options = ["--deploy-mode", "cluster", "--staging-dir", staging, "--workers", "2"]
    process = cluster.tfos("run", settings, *options, ROOT / "examples/mnist/script.py", "--epochs", "8")
    output = output_of(process, 300)
    log = cluster.kubectl("logs", "-n", NAMESPACE, "driver-of-a-script", check=False)
    assert process.returncode == 0, f"{output}\n{log}"
    assert "accuracy" in log
    assert not list(staging.iterdir())
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, "driver-of-a-script")


def _as_root_of_the_staging(folder):
    """Return a pod template for a driver that runs as the user who has staged the files: here root."""
    text = (ROOT / "deploy/kubernetes/executor.yaml").read_text()
    template = folder / "driver.yaml"
    template.write_text(text.replace("runAsNonRoot: true", "runAsNonRoot: false").replace("185", "0"))
    return template


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
    """The second pod is never made: the error counts the slots."""
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "pods"},
            "spec": {"hard": {"pods": "1"}},
        }
    )
    try:
        process = cluster.tfos(
            "run",
            cluster.settings(folder.name),
            "--workers", "2", "--start-timeout", "40", ROOT / "examples/mnist/script.py",
        )  # fmt: skip
        output = output_of(process, 200)
        assert process.returncode not in (0, None), output
        assert "SlotsError" in output or "slots" in output, output
    finally:
        cluster.kubectl("delete", "quota", "-n", NAMESPACE, "pods")


def test_two_namespaces_do_not_mix(cluster, folder):
    """An account of one namespace starts no pods in another; its error says so."""
    assert shutil.which("kubectl")
    who = f"system:serviceaccount:{NAMESPACE}:tfos"
    assert cluster.kubectl("auth", "can-i", "create", "pods", "-n", NAMESPACE, "--as", who).strip() == "yes"
    denied = cluster.kubectl("auth", "can-i", "create", "pods", "-n", "default", "--as", who, check=False)
    assert denied.strip() == "no"
