"""A Kubernetes cluster of processes, which ends with this one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import jvm, maven
from tests.support.kubernetes.kubelet import Api
from tests.support.paths import ROOT

_PROGRAM = Path(__file__).with_name("ApiServer.java")
JARS = "kubernetes-jars"


def fetch_jars():
    """Return the folder with the API server's jars."""
    return maven.fetch_jars(JARS, _PROGRAM.with_name("pom.xml"))


class KubernetesCluster:
    """An API server and a kubelet.

    Parameters
    ----------
    directory : str
        Where they keep all of their files.

    Attributes
    ----------
    url : str
        Spark's master is ``k8s://`` and this.
    api : Api
        The objects of the namespace ``default``.
    address : str
        This machine's, for the pods.
    has_hosts : bool
        Whether each pod is a host of its own, on which names of services are known: if this process is root's.
    """

    pod_address = r"(?:10\.\d+|127\.0)\.\d+\.\d+"  # as a regular expression

    def __init__(self, directory):
        self.directory = Path(directory)
        with open(self.directory / "kubelet.log", "wb") as errors:
            self._kubelet = subprocess.Popen(
                [sys.executable, "-m", "tests.support.kubernetes.kubelet", directory],
                cwd=ROOT,
                env=os.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.address = self._kubelet.stdout.readline().strip()
        self.has_hosts = not self.address.startswith("127.")
        options = ["-Xmx256m", *jvm.SOONER.split(), f"-Djava.io.tmpdir={directory}", "-cp", f"{fetch_jars()}/*"]
        self._log = self.directory / "api-server.log"
        self._server = maven.Answering([maven.java(), *options, str(_PROGRAM), self.address], self._log, directory)
        self.url = self._server.answer("the API server")
        self.api = Api(self.url)
        self._kubelet.stdin.write(f"{self.url}\n")
        self._kubelet.stdin.flush()

    def check(self, file):
        """Return "ok", or what the API's types do not allow in a YAML file."""
        return self._server.ask(str(file))

    def settings(self):
        """Return the settings of Spark for an application with two executors."""
        return {
            "spark.master": f"k8s://{self.url}",
            "spark.kubernetes.container.image": "none",
            "spark.kubernetes.driver.master": self.url,
            "spark.kubernetes.executor.podTemplateFile": str(ROOT / "deploy/kubernetes/executor.yaml"),
            "spark.kubernetes.executor.useDriverPodIP": str(not self.has_hosts).lower(),
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            **{f"spark.{role}.extraJavaOptions": jvm.SOONER for role in ("driver", "executor")},
            "spark.ui.enabled": "false",
        }

    def client_settings(self):
        """Return those for one whose driver runs on this machine, outside of the pods."""
        return {**self.settings(), **{f"spark.driver.{each}": self.address for each in ("host", "bindAddress")}}

    def pod(self, name):
        """Return a pod's object as it was at its start."""
        return json.loads((self.directory / name / "pod.json").read_text())

    def pods_of(self, application):
        """Return the names of all pods that have run whose name begins with this."""
        return sorted(each.name for each in self.directory.glob(f"{application}-*") if each.is_dir())

    def requests(self):
        """Return what others than the kubelet have asked of the API, as verb and resource of a role."""
        found = set()
        lines = self._log.read_text(errors="replace")
        for method, target in re.findall(r"^request of (?!Python-urllib).*?: (\w+) (\S+)$", lines, re.MULTILINE):
            path, _, query = target.partition("?")
            if match := re.fullmatch(r"/api/v1(?:/namespaces/\w+)?/(\w+)(/[^/]+)?", path):
                kind, name = match.groups()
                if method == "GET":
                    verb = "watch" if "watch=true" in query else "get" if name else "list"
                elif method == "DELETE":
                    verb = "delete" if name else "deletecollection"
                else:
                    verb = {"POST": "create", "PATCH": "patch", "PUT": "update"}[method]
                found.add((verb, kind))
        return found

    def log(self, pod):
        """Return what a pod has written."""
        return (self.directory / pod / "log").read_text(errors="replace")

    def close(self):
        """End both, and all pods."""
        self._kubelet.stdin.close()
        self._kubelet.wait(20)
        self._kubelet.stdout.close()
        self._server.close()
