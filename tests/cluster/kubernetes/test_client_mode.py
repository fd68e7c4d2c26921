"""A driver outside of Kubernetes whose executors are pods: scripts, a pod that is deleted, and signals."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.support import hosts, ladder
from tests.support.commands import options_of, output_of, start_tfos
from tests.support.fed_cluster import APPLICATIONS, check_fed_clusters
from tests.support.kubernetes.kubelet import PULL_SECONDS
from tests.support.paths import ROOT, SUPPORT
from tests.support.programs import wait_for


def conf(kubernetes):
    return options_of(kubernetes.client_settings())


def tfos_run(kubernetes, *arguments, workers=2):
    """Start ``tfos run`` with a driver outside of the pods."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    options = ["--workers", workers, "--show", "all", *conf(kubernetes)]
    return start_tfos("run", *options, *arguments, env=environment)


@pytest.mark.timeout(240)  # one machine is driver, API server and two pods
def test_an_unchanged_script_trains_on_two_pods(kubernetes):
    """Spark does not wait for their image; the cluster does."""
    late = {
        f"spark.kubernetes.executor.annotation.{PULL_SECONDS}": 3,
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
    }
    options = options_of(late)
    script = [ROOT / "examples/mnist/script.py", "--epochs", "8"]
    process = tfos_run(kubernetes, "--name", "script", *options, *script)
    output = output_of(process, 200)
    assert process.returncode == 0, output
    found = dict(re.findall(r"\[worker:(\d)\] worker \d: accuracy ([\d.]+)", output))
    assert set(found) == {"0", "1"}, output
    assert found["0"] == found["1"]
    assert float(found["0"]) > 0.8
    for name in kubernetes.pods_of("script"):
        spec = kubernetes.pod(name)["spec"]
        assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]


def run_driver(kubernetes, program, name, directory):
    """Run a program of tests/support as the driver of an application; return what it prints last, and its errors."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*conf(kubernetes), "--name", name, "pyspark-shell"]),
    }
    command = [sys.executable, SUPPORT / "kubernetes" / program, kubernetes.url, directory]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=240)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pods_that_are_killed_are_named_with_the_reason_of_each(kubernetes, tmp_path):
    """One for its memory, the other for its disk, at the same time: either may be noticed first."""
    found, errors = run_driver(kubernetes, "killed.py", "killed", tmp_path)
    assert found["results"] == {"worker:0": 1, "worker:1": 1}
    number = r"worker:[01] on [\d.]+"
    first = rf"^({number} failed: [^(]*)\((executor.*?)\); at the same time ended the executors of {number} \((.*)\)$"
    line = re.search(first, errors, re.MULTILINE)
    assert line, errors
    code = r"exit code 137\(SIGKILL, possible container OOM\)"
    pod = r"executor (\d+), pod (killed-\w+)-exec-\1: "
    full = 'Evicted, Usage of EmptyDir volume "spark-local-dir-1" exceeds the limit "1Gi".'
    for reason in ("OOMKilled", re.escape(full)):
        assert any(re.fullmatch(f"{pod}{code}, {reason}", each) for each in line.groups()[1:]), errors
    assert f"{line[0]}\nAll nodes are started again (restart 1 of 1)" in errors
    assert [text for kind, text in found["events"] if kind == "failure"] == [line[0]]
    names = set(re.findall(r"pod (killed-\w+-exec-\d+)", line[0]))
    assert len(names) == 2
    assert names <= set(kubernetes.pods_of("killed"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_training_goes_on_after_its_pod_is_deleted(kubernetes, tmp_path):
    found, errors = run_driver(kubernetes, "program.py", "deleted", tmp_path)
    assert sorted(found["hosts"]) == sorted(found["pods"])
    assert len(set(found["hosts"])) == 2
    lost = found["hosts"][1]
    # The supervisor reports the end of its executor, or ends with it before it has.
    named = f"worker:1 on {lost} failed: the (executor that it ran on has ended|connection to its supervisor broke)"
    assert re.search(named, errors), errors
    for result in found["results"].values():
        assert result["attempt"] == 1
        assert 0 < result["epochs"] < 6  # the rest, from a checkpoint
        assert result["accuracy"] > 0.9
    assert len(kubernetes.pods_of("deleted")) == 3


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_signal_leaves_no_pods(kubernetes, tmp_path):
    """Three applications at once, each with a signal of its own."""
    (tmp_path / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    processes, outputs = {}, {}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        logs = tmp_path / number.name
        options = ["--name", number.name.lower(), "--log-dir", logs, "--conf", "spark.executor.instances=1"]
        processes[number] = tfos_run(kubernetes, *options, tmp_path / "train.py", workers=1)
    try:
        for number in processes:
            log = tmp_path / number.name / "worker-0.log"
            wait_for(lambda log=log: log.exists() and "begun" in log.read_text(), 150)
        begin = time.monotonic()
        for number, process in processes.items():
            process.send_signal(number)
    finally:
        for number, process in processes.items():
            outputs[number] = output_of(process, 60)
    for number, process in processes.items():
        assert process.returncode == 128 + number, outputs[number]
        assert f"ended by {number.name}" in outputs[number]
    assert time.monotonic() - begin < 30
    assert kubernetes.api.get("pods") == []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_cluster_comes_up_under_dynamic_allocation(kubernetes, tmp_path):
    """Spark starts with one pod, and allows no barrier stage."""
    (tmp_path / "train.py").write_text("import json, os\nprint(json.loads(os.environ['TF_CONFIG'])['cluster'])\n")
    dynamic = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": 1,
        "spark.executor.instances": 1,
    }
    options = options_of(dynamic)
    process = tfos_run(kubernetes, "--name", "dynamic", *options, tmp_path / "train.py")
    output = output_of(process, 150)
    assert process.returncode == 0, output
    addresses = set(re.findall(kubernetes.pod_address, "".join(re.findall(r"^\[worker.*", output, re.MULTILINE))))
    # A third pod may have come: Spark asks for one if the nodes' tasks wait a second for those that held their slots.
    assert len(addresses) == 2, output


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("application", APPLICATIONS)
def test_rows_reach_their_nodes_although_pods_have_equal_pids(kubernetes, application):
    if not kubernetes.has_hosts:
        ladder.skip(hosts.what_is_missing())
    check_fed_clusters({**kubernetes.client_settings(), "spark.app.name": "fed"}, kubernetes.address)
