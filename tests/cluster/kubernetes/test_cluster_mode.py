"""A driver in a pod, which executors and nodes reach by the name of its service."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pyspark
import pytest
import yaml

from tensorflowonspark import storage
from tests.support.commands import options_of, output_of, start_tfos
from tests.support.kubernetes.kubelet import HOST_NETWORK, PULL_SECONDS
from tests.support.paths import ROOT
from tests.support.programs import wait_for

SUBMIT = Path(pyspark.__file__).parent / "bin/spark-submit"
VOLUME = "spark.kubernetes.driver.volumes.hostPath.staging"


class Application:
    """``tfos run --deploy-mode cluster``; a staging directory that is a path is a volume of the driver's pod."""

    def __init__(self, kubernetes, name, staging, *arguments):
        self._kubernetes = kubernetes
        self._name, self._pod = name, f"{name}-driver"
        self._staging = str(staging)
        settings = {name: value for name, value in kubernetes.settings().items() if name != "spark.master"}
        settings["spark.kubernetes.driver.pod.name"] = self._pod
        if isinstance(staging, Path):
            settings |= {f"{VOLUME}.mount.path": staging, f"{VOLUME}.options.path": staging}
        files, within = storage.file_system(self._staging)
        files.makedirs(within, exist_ok=True)
        mode = ["--master", f"k8s://{kubernetes.url}", "--deploy-mode", "cluster", "--staging-dir", self._staging]
        without = ("SPARK_LOCAL_IP", "PYSPARK_PYTHON")
        environment = {key: value for key, value in os.environ.items() if key not in without}
        environment["HADOOP_USER_NAME"] = "ann"
        self.process = start_tfos("run", *mode, *options_of(settings), "--name", name, *arguments, env=environment)

    def end(self, seconds):
        """Wait for the end; return what the command and the driver have written, and the driver's state.

        The driver's pod stays until it is deleted, and none of the others does.
        """
        output = output_of(self.process, seconds)
        pods = pods_of(self._kubernetes, self._name)
        for pod in pods:
            self._kubernetes.api.delete(f"pods/{pod}")
        assert set(pods) == {self._pod}, output
        files, within = storage.file_system(self._staging)
        assert files.ls(within, detail=False) == []
        assert f"default:{self._pod}: its output is that of kubectl logs -n default {self._pod}" in output
        return output, self._kubernetes.log(self._pod), pods[self._pod]


def pods_of(kubernetes, name):
    """Return the states of an application's pods, by their names."""
    pods = [each for each in kubernetes.api.get("pods") if each["metadata"]["labels"]["spark-app-name"] == name]
    return {each["metadata"]["name"]: each["status"] for each in pods}


def exit_code(status):
    """Return the exit code of a pod's container."""
    (container,) = status["containerStatuses"]
    return container["state"]["terminated"]["exitCode"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_unchanged_script_trains_under_a_driver_in_a_pod(kubernetes, tmp_path):
    script = [ROOT / "examples/mnist/script.py", "--epochs", "8"]
    application = Application(kubernetes, "inside", tmp_path / "staging", "--workers", 2, "--show", "all", *script)
    output, log, status = application.end(200)
    assert application.process.returncode == 0, output
    assert exit_code(status) == 0
    assert status["phase"] == "Succeeded"

    found = dict(re.findall(r"\[worker:(\d)\] worker \d: accuracy ([\d.]+)", log))
    assert set(found) == {"0", "1"}, log
    assert found["0"] == found["1"]
    assert float(found["0"]) > 0.8

    (driver,) = kubernetes.pod("inside-driver")["spec"]["containers"]
    assert "PYSPARK_PYTHON" not in {each["name"] for each in driver["env"]}  # the image's
    for name in set(kubernetes.pods_of("inside")) - {"inside-driver"}:
        spec = kubernetes.pod(name)["spec"]
        assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]
        (driver_url,) = [each["value"] for each in spec["containers"][0]["env"] if each["name"] == "SPARK_DRIVER_URL"]
        host = r"inside-\w+-driver-svc\.default\.svc" if kubernetes.has_hosts else kubernetes.pod_address
        assert re.search(f"@{host}:", driver_url)

    _, role, _ = yaml.safe_load_all((ROOT / "deploy/kubernetes/rbac.yaml").read_text())
    allowed = {(verb, kind) for rule in role["rules"] for verb in rule["verbs"] for kind in rule["resources"]}
    requests = kubernetes.requests()
    assert ("create", "pods") in requests
    assert requests <= allowed


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_exit_code_is_that_of_the_script(kubernetes, hdfs, hadoop_free, tmp_path):
    """Two applications at once: of ``tfos run``, and of spark-submit, which is what the Spark operator uses."""
    files, _ = storage.file_system(hdfs)
    files.makedirs("/staging", exist_ok=True)
    files.client.set_owner("/staging", "ann", "ann")
    (tmp_path / "train.py").write_text("import sys; sys.exit(7)")
    near = [f"spark.kubernetes.{role}.annotation.{HOST_NETWORK}=yes" for role in ("driver", "executor")]  # to the HDFS
    options = [word for each in near for word in ("--conf", each)]
    application = Application(kubernetes, "command", f"{hdfs}/staging", *options, tmp_path / "train.py")

    program = tmp_path / "tfos.py"  # as in the image of deploy/Dockerfile
    program.write_text("import sys\nfrom tensorflowonspark.cli import main\nsys.exit(main())\n")
    settings = {**kubernetes.settings(), "spark.kubernetes.driver.pod.name": "image-driver"}
    command = [
        SUBMIT,
        *options_of(settings),
        "--deploy-mode",
        "cluster",
        "--name",
        "image",
        f"local://{program}",
        "run",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_LOCAL_IP"}
    try:
        done = subprocess.run(
            [*command, tmp_path / "train.py"], check=False, env=environment, capture_output=True, text=True, timeout=180
        )
    finally:
        output, _, status = application.end(60)
    assert application.process.returncode == exit_code(status) == 7, output
    assert re.search(rf"worker:0 on {kubernetes.pod_address} failed: its program called sys.exit\(7\)", output)
    (driver,) = kubernetes.pod("command-driver")["spec"]["containers"]
    assert {"name": "HADOOP_USER_NAME", "value": "ann"} in driver["env"]  # the owner of the staged files

    assert done.returncode == 0, done.stderr  # whatever the driver's is
    ((pod, status),) = pods_of(kubernetes, "image").items()
    kubernetes.api.delete(f"pods/{pod}")
    assert exit_code(status) == 7
    assert "failed: its program called sys.exit(7)" in kubernetes.log(pod)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_signal_ends_the_driver_and_leaves_nothing(kubernetes, tmp_path):
    begun, stopped = tmp_path / "begun", tmp_path / "stopped"
    (tmp_path / "train.py").write_text(
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path({str(stopped)!r}).touch()))\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        "time.sleep(600)\n"
    )
    application = Application(kubernetes, "ends", tmp_path / "staging", tmp_path / "train.py")
    try:
        wait_for(begun.exists, 120)
        application.process.send_signal(signal.SIGTERM)
    finally:
        output, _, status = application.end(60)
    assert application.process.returncode == exit_code(status) == 143, output
    assert stopped.exists()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_signal_deletes_a_driver_that_has_not_started(kubernetes, tmp_path):
    """As one whose image can't be pulled."""
    (tmp_path / "train.py").touch()
    pulls = ["--conf", f"spark.kubernetes.driver.annotation.{PULL_SECONDS}=600"]
    application = Application(kubernetes, "pulls", tmp_path / "staging", *pulls, tmp_path / "train.py")
    try:
        assert "default:pulls-driver: its output" in application.process.stdout.readline()
        application.process.send_signal(signal.SIGTERM)
        output, _ = application.process.communicate(timeout=40)
    finally:
        application.process.kill()
    assert application.process.returncode == 143, output
    assert "default:pulls-driver: deleted" in output
    wait_for(lambda: not pods_of(kubernetes, "pulls"), 20)
    assert list((tmp_path / "staging").iterdir()) == []
