"""A real Kubernetes of one node on this machine, which the scripts beside this file build, start and end."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from tests.support.commands import TFOS, options_of
from tests.support.paths import ROOT

_HERE = Path(__file__).parent
NOBODY = 65534  # whom this machine and the image have
_PROGRAMS = "containerd", "runc", "etcd", "iptables", "openssl", "kubectl", "unshare", "nsenter", "setpriv"
_MASTER = ["--master", "k8s://https://10.10.0.1:6443"]
_READS = "dac_read_search"
_AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--securebits=+no_setuid_fixup"]
_AS_NOBODY += [f"--inh-caps=-all,+{_READS}", f"--ambient-caps=+{_READS}"]
NAMESPACE, OTHER = "training", "others"
PROGRAM = _HERE / "program.py"


def what_is_missing(build):
    """Return why no Kubernetes can be started; empty if it can."""
    if os.geteuid():
        return "it needs root"
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "it needs cgroup v1"
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"there is no {', no '.join(missing)}: CONTRIBUTING.md names the packages"
    if not Path("/usr/lib/cni/bridge").exists():
        return "there is no /usr/lib/cni/bridge (Debian: containernetworking-plugins)"
    needed = [Path(build, "bin/hyper"), *(Path(build, f"images/{name}.tar") for name in ("pause", "tfos"))]
    return next((f"there is no {each}: make test-kubernetes makes it" for each in needed if not each.exists()), "")


class RealKubernetes:
    """The cluster, with two namespaces as docs/deploy/kubernetes.md sets one up, and a claim `shared` in each.

    The claim's volume is the folder `shared`, which the drivers on this machine see under the same path.
    """

    def __init__(self, build, folder):
        self.folder = Path(folder).resolve()
        self.shared = self.folder / "shared"
        for each in (self.shared, self.folder / "etcd"):  # of an earlier run; images stay
            shutil.rmtree(each, ignore_errors=True)
        subprocess.run([_HERE / "up.sh", build, self.folder, sys.executable], check=True, timeout=330)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self):
        self.shared.mkdir()
        self.shared.chmod(0o1777)  # else others could replace what is staged in it
        for each in (NAMESPACE, OTHER):
            self._make_namespace(each)

    def _make_namespace(self, namespace):
        self.kubectl("create", "namespace", namespace)
        self.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        for name in ("rbac", "network-policy"):
            self.kubectl("apply", "-n", namespace, "-f", ROOT / f"deploy/kubernetes/{name}.yaml")
        size, volume = {"storage": "1Gi"}, f"shared-{namespace}"
        shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        spec = {**shared, "capacity": size, "hostPath": {"path": str(self.shared)}}
        claim = {**shared, "volumeName": volume, "resources": {"requests": size}}
        for kind, name, its in (("PersistentVolume", volume, spec), ("PersistentVolumeClaim", "shared", claim)):
            self.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": its}, namespace=namespace)

    def close(self):
        """End the cluster, and all that runs on it."""
        subprocess.run([_HERE / "down.sh", self.folder], check=False, timeout=60)

    def start(self, command, environment=None, **options):
        """Start a command on the node, which reaches pods and the API: a driver outside of the pods."""
        inherited = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
        own = {"KUBECONFIG": str(self.folder / "kubeconfig"), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        return subprocess.Popen(
            [_HERE / "enter.sh", self.folder, *map(str, command)],
            env={**inherited, **own, "PYSPARK_PYTHON": "python3", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    def kubectl(self, *arguments, text=None, check=True):
        """Return what kubectl prints."""
        process = self.start(["kubectl", *arguments], stdin=subprocess.PIPE)
        output, _ = process.communicate(text, timeout=120)
        assert process.returncode == 0 or not check, output
        return output

    def apply(self, *objects, namespace=NAMESPACE):
        """Make objects, or change them."""
        for each in objects:
            self.kubectl("apply", "-n", namespace, "-f", "-", text=json.dumps(each))

    def pods(self, namespace=NAMESPACE, **labels):
        """Return the pods with these labels."""
        selector = ",".join(f"{name.replace('_', '-')}={value}" for name, value in labels.items())
        chosen = ["-l", selector] if selector else []
        return json.loads(self.kubectl("get", "pods", "-n", namespace, *chosen, "-o", "json"))["items"]

    def settings(self, name, namespace=NAMESPACE, **more):
        """Return Spark's settings for two pods of an application, which are another user than its driver."""
        claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.shared"
        return {
            "spark.app.name": name,
            "spark.driver.host": "10.10.0.1",
            "spark.kubernetes.namespace": namespace,
            "spark.kubernetes.container.image": "localhost/tfos:cpu",
            "spark.kubernetes.executor.podTemplateFile": ROOT / "deploy/kubernetes/executor.yaml",
            "spark.kubernetes.executor.request.cores": 0.3,
            f"{claim}.options.claimName": "shared",
            f"{claim}.mount.path": self.shared,
            "spark.executor.instances": 2,
            "spark.executor.cores": 1,
            "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "1500m",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.hadoop.fs.permissions.umask-mode": "000",
            **more,
        }

    def tfos(self, command, settings, *arguments, environment=None):
        """Start ``tfos`` on the node."""
        return self.start([*TFOS, command, *_MASTER, *options_of(settings), *arguments], environment)

    def tfos_of_nobody(self, command, settings, *arguments):
        """Start ``tfos`` on the node as a user who is not root, as whom a pod may run too; it may read all files."""
        words = [*_AS_NOBODY, *TFOS, command, *_MASTER, *options_of(settings), *arguments]
        return self.start(words)

    def submit(self, settings, *words):
        """Start ``spark-submit`` on the node."""
        home = Path(pyspark.__file__).parent
        command = [home / "bin/spark-submit", *_MASTER, *options_of(settings), *words]
        return self.start(command, {"SPARK_HOME": str(home)})

    def driver(self, settings, program, *arguments):
        """Start a program as a driver on the node."""
        words = [*_MASTER, *options_of(settings), "pyspark-shell"]
        return self.start([sys.executable, program, *arguments], {"PYSPARK_SUBMIT_ARGS": " ".join(map(str, words))})


def wait_for_file(path, process, seconds):
    """Wait until a process has written a file, and return its text; fail with what it prints if it ends before."""
    end = time.monotonic() + seconds
    while not (text := path.read_text() if path.exists() else ""):  # it may be empty at first
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end, f"{path} did not come within {seconds} s"
        time.sleep(0.2)
    return text
