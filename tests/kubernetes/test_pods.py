"""Trainings in pods that have control groups, users, quotas and read-only roots of their own."""

import json
import os
import re
import shutil
import signal

import psutil
import pytest

from tests.support.commands import output_of
from tests.support.paths import ROOT, SUPPORT
from tests.support.programs import wait_for
from tests.support.real_kubernetes import NAMESPACE, NOBODY, OTHER, PROGRAM, wait_for_file

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
    process = cluster.driver(cluster.settings(folder.name, **settings), PROGRAM, deed, folder, restarts)
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


@pytest.mark.parametrize(
    ("example", "words", "printed"),
    [
        ("mnist/estimator.py", ["--epochs", 4], r"accuracy of each epoch: \[([\d.]+, ){3}0\.[6-9]"),
        ("streaming/streaming.py", ["--files", 2], r"accuracy after \d+ rows: 0\.[5-9]"),
    ],
)
def test_a_program_of_dataframes(cluster, folder, example, words, printed):
    """An estimator and its model; rows that a cluster answers while a stream feeds it."""
    where = ["--output", folder / "output"]
    process = cluster.driver(cluster.settings(folder.name), ROOT / "examples" / example, *words, *where)
    output = output_of(process, 400)
    assert process.returncode == 0, output
    assert re.search(printed, output), output


def test_a_parameter_server_in_pods_of_one_processor(cluster, folder):
    """The chief, two workers and the parameter server have a pod each, which is never given a second processor."""
    small = {"spark.executor.instances": 4, "spark.kubernetes.executor.limit.cores": 1}
    words = ["--workers", 2, "--epochs", 4, "--ps-on-executors", "--output", folder / "model.keras"]
    program = ROOT / "examples/parameter_servers/parameter_servers.py"
    output = output_of(process := cluster.driver(cluster.settings(folder.name, **small), program, *words), 400)
    assert process.returncode == 0, output
    rows = re.findall(r"epoch \d: (\d+) rows", output)
    assert len(rows) == 4, output
    assert len(set(rows)) == 1, output


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
    settings = _settings_of_driver(cluster, folder, ROOT / "deploy/kubernetes/executor.yaml")
    script = ["/opt/examples/mnist/script.py", "--epochs", "8"]
    words = ["--deploy-mode", "cluster", "local:///opt/tfos.py", "run", "--workers", "2", "--show", "all", *script]
    process = cluster.submit(settings, *words)
    output = output_of(process, 300)
    log = cluster.kubectl("logs", "-n", NAMESPACE, folder.name, check=False)
    assert process.returncode == 0, output
    assert _exit_code_of_driver(cluster) == 0, f"{output}\n{log}"
    assert set(re.findall(r"\[worker:(\d)\] worker \d: accuracy", log)) == {"0", "1"}, log
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, folder.name)


def _settings_of_driver(cluster, folder, template):
    """Return the settings for two pods and a driver in a pod that is made of a template."""
    driver = "spark.kubernetes.driver"
    settings = {
        **cluster.settings(folder.name),
        f"{driver}.podTemplateFile": template,
        f"{driver}.pod.name": folder.name,
        f"{driver}.request.cores": 0.3,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "tfos",
        "spark.driver.memory": "1g",
    }
    del settings["spark.driver.host"]
    return settings


def _exit_code_of_driver(cluster):
    (pod,) = cluster.pods(spark_role="driver")
    (container,) = pod["status"]["containerStatuses"]
    return container["state"]["terminated"]["exitCode"]


_STAGED = """
import pathlib, time
import beside, shipped
print("found", beside.NAME, shipped.NAME, pathlib.Path("table.csv").read_text(), flush=True)
pathlib.Path({folder!r}, "waiting").write_text("yes")
{end}
"""


@pytest.mark.parametrize(
    ("end", "words", "exit_code", "printed"),
    [
        pytest.param("", [], 0, "", id="ends"),
        pytest.param("", ["--no-wait"], 0, "", id="is not waited for"),
        pytest.param("raise ValueError('no row')", [], 1, "ValueError: no row", id="fails"),
        pytest.param("time.sleep(600)", [], 143, "SIGTERM", id="is signalled"),
    ],
)
def test_staged_files(cluster, folder, tmp_path, end, words, exit_code, printed):
    """By a user on whose behalf the driver's pod runs, on a claim that this machine mounts too; none stays."""
    for name, text in (
        ("train.py", _STAGED.format(folder=str(folder), end=end)),
        ("beside.py", "NAME = 'one beside the script'"),
        ("elsewhere/shipped.py", "NAME = 'one of --py-files'"),
        ("elsewhere/table.csv", "rows of --files"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (staging := folder / "staging").mkdir()
    os.chown(staging, NOBODY, NOBODY)
    claim = "spark.kubernetes.driver.volumes.persistentVolumeClaim.shared"
    template = _template_with(folder, "runAsUser: 185", f"runAsUser: {NOBODY}")
    settings = {
        **_settings_of_driver(cluster, folder, template),
        f"{claim}.options.claimName": "shared",
        f"{claim}.mount.path": cluster.shared,
    }
    elsewhere = tmp_path / "elsewhere"
    files = ["--py-files", elsewhere / "shipped.py", "--files", elsewhere / "table.csv"]
    mode = ["--deploy-mode", "cluster", "--staging-dir", staging, "--workers", "2", "--show", "all"]
    process = cluster.tfos_of_nobody("run", settings, *mode, *words, *files, tmp_path / "train.py")
    if exit_code > 128:
        wait_for_file(folder / "waiting", process, 200)
        (command,) = psutil.Process(process.pid).children()
        command.send_signal(signal.SIGTERM)
    output = output_of(process, 300)
    try:
        if words:
            wait_for(lambda: cluster.pods(spark_role="driver")[0]["status"]["phase"] in ("Succeeded", "Failed"), 200)
        log = cluster.kubectl("logs", "-n", NAMESPACE, folder.name, check=False)
        assert process.returncode == exit_code, f"{output}\n{log}"
        assert _exit_code_of_driver(cluster) == exit_code, f"{output}\n{log}"
    finally:
        cluster.kubectl("delete", "pod", "-n", NAMESPACE, folder.name, check=False)
    assert printed in output
    found = "found one beside the script one of --py-files rows of --files"
    workers = re.findall(rf"^\[worker:(\d)\] {found}$", log, re.MULTILINE)
    assert len(workers) == 2 or (workers and exit_code), log  # the end of one may come before the other one's line
    assert not list(staging.iterdir()), output


def test_a_pod_that_is_deleted(cluster, folder):
    found = _trained(cluster, folder, "wait", 1, lambda pod: cluster.kubectl("delete", "pod", "-n", NAMESPACE, pod))
    _check_resumed(found)


@pytest.mark.parametrize("deed", ["deleted", "drained"])
def test_decommissioned_pods(cluster, folder, deed):
    """All workers save in the midst of an epoch before they go: the hook sends SIGPWR, and waits for the executor."""
    script = shutil.copy(SUPPORT / "real_kubernetes/decom.sh", folder)
    settings = {"spark.decommission.enabled": "true", "spark.kubernetes.decommission.script": script}

    def act(pod):
        if deed == "drained":
            _drain(cluster)
        else:
            cluster.kubectl("delete", "pod", "-n", NAMESPACE, pod)

    found = _trained(cluster, folder, "slow", 1, act, **settings)
    _check_resumed(found)
    assert found["events"] == ["started", "notice", "restart", "started"]
    (steps,) = {each["steps"] for each in found["results"].values()}
    assert 40 < steps < 60, found  # three epochs have 20 each; those before the notice were not taken again


def test_a_node_that_is_drained(cluster, folder):
    _check_resumed(_trained(cluster, folder, "wait", 1, lambda _: _drain(cluster)))


def _drain(cluster):
    cluster.kubectl("drain", "node", "--ignore-daemonsets", "--delete-emptydir-data", "--force")
    cluster.kubectl("uncordon", "node")


def test_a_pod_that_gives_way_to_one_of_higher_priority(cluster, folder):
    """The scheduler ends a worker's pod when another one needs the node's processors."""
    for name, value in (("low", -10), ("high", 10)):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        cluster.apply({**kind, "value": value})
    pause = {"name": "pause", "image": "localhost/pause:1", "resources": {"requests": {"cpu": "1600m"}}}
    spec = {"priorityClassName": "high", "containers": [pause], "terminationGracePeriodSeconds": 0}
    other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "urgent"}, "spec": spec}

    def need_processors(_):
        cluster.apply(other, namespace="default")
        cluster.kubectl("wait", "-n", "default", "--for=condition=Ready", "pod/urgent", "--timeout=90s")
        cluster.kubectl("delete", "pod", "-n", "default", "urgent")

    template = _template_with(folder, "\nspec:\n", "\nspec:\n  priorityClassName: low\n")
    low = {"spark.kubernetes.executor.podTemplateFile": template}
    _check_resumed(_trained(cluster, folder, "wait", 1, need_processors, **low))


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
    """An account of one namespace starts no pods in another; applications of one name train in both."""
    who = f"system:serviceaccount:{NAMESPACE}:tfos"
    assert cluster.kubectl("auth", "can-i", "create", "pods", "-n", NAMESPACE, "--as", who).strip() == "yes"
    denied = cluster.kubectl("auth", "can-i", "create", "pods", "-n", OTHER, "--as", who, check=False)
    assert denied.strip() == "no"
    drivers = []
    for namespace in (NAMESPACE, OTHER):
        (own := folder / namespace).mkdir()
        own.chmod(0o777)
        drivers.append(cluster.driver(cluster.settings(folder.name, namespace), PROGRAM, "none", own, 0))
    found = [_found(each)["results"] for each in drivers]
    assert {each["epochs"] for of in found for each in of.values()} == {_EPOCHS}
    assert len({each["pod"] for of in found for each in of.values()}) == 4


@pytest.mark.parametrize(
    ("name", "schema", "plural", "group"),
    [
        ("spark-application", "spark_application", "sparkapplications", "sparkoperator.k8s.io/v1beta2"),
        ("spark-application-apache", "apache_spark_application", "sparkapplications", "spark.apache.org/v1"),
    ],
)
def test_the_api_takes_an_application_of_an_operator(cluster, name, schema, plural, group):
    """The API server itself checks our manifests, and finds a field that is none."""
    described = json.loads((SUPPORT / f"kubernetes/{schema}.schema.json").read_text())
    cluster.apply(_resource(described, plural, group))
    cluster.kubectl(
        "wait", "--for=condition=Established", "crd", f"{plural}.{group.partition('/')[0]}", "--timeout=30s"
    )
    manifest = ROOT / f"deploy/kubernetes/{name}.yaml"
    apply = ["apply", "-n", NAMESPACE, "--validate=strict", "--dry-run=server", "-f"]
    assert "created" in cluster.kubectl(*apply, manifest)
    wrong = manifest.read_text().replace("sparkConf:", "sparkConfig:")
    refused = cluster.kubectl(*apply, "-", text=wrong, check=False)
    assert 'unknown field "spec.sparkConfig"' in refused


def _resource(schema, plural, group):
    """Return the definition of a resource whose objects have a schema."""
    group, _, version = group.partition("/")
    names = {"kind": "SparkApplication", "plural": plural, "singular": plural[:-1]}
    whole = {"type": "object", "properties": {"spec": _structural(schema["properties"]["spec"])}}
    versions = [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": whole}}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
    }


def _structural(schema):
    """Return a JSON schema in the form of the API: what has no type may be anything, and no more fields are none."""
    if schema.get("type") == ["integer", "string"]:
        return {"x-kubernetes-int-or-string": True}
    found = {key: value for key, value in schema.items() if key != "additionalProperties" or value is not False}
    if schema.get("type") == "array":
        found.setdefault("items", {})
    if schema.get("type", "object") == "object" and not {"properties", "additionalProperties"} & set(found):
        found["x-kubernetes-preserve-unknown-fields"] = True
    if "properties" in found:
        found["properties"] = {name: _structural(each) for name, each in found["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = _structural(found[key])
    return found
