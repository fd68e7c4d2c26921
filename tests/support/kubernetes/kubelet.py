"""A kubelet without containers: each pod is a group of processes at an address of its own.

It does for Spark's pods what kubelet, name server and the image's entry point do: it mounts config maps and empty
directories as folders of the pod, and the host's under their own path, fills in the environment, starts the command,
reports its state, and ends it when the pod is deleted. A pod's processes see the machine's files. As root it makes each
pod a host of its own (`tests.support.hosts`), with a file of hosts with the names of services, and the /dev/shm that a
volume of memory asks for; otherwise, and with the annotation ``HOST_NETWORK``, its address is 127.0.1.n.

    python -m tests.support.kubernetes.kubelet DIRECTORY

It reads the URL of the API server, writes this machine's address for the pods first, and ends, with all pods, when its
standard input does.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import nullcontext, suppress
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from threading import Event, Thread

import psutil
import pyspark

from tests.support import hosts

_SPARK = Path(pyspark.__file__).parent
_GRACE_SECONDS = 30.0
_POLL_SECONDS = 0.1
PULL_SECONDS = "tests/pull-seconds"  # the annotation of a pod whose image takes time
HOST_NETWORK = "tests/host-network"  # of one that needs servers at this machine's 127.0.0.1
# Of one whose container is killed as a whole: the container's reason, or the pod's with a message, as "Evicted: why".
KILLED = "tests/killed"


class Api:
    """The API server, with the objects of one namespace.

    Parameters
    ----------
    url : str
        Its address.
    namespace : str
        The namespace.
    """

    def __init__(self, url, namespace="default"):
        self._url = f"{url}/api/v1/namespaces/{namespace}"

    def get(self, kind):
        """Return the objects of a kind (``pods``, ``services``, ``configmaps``)."""
        return self._send("GET", kind)["items"]

    def patch(self, path, *changes):
        """Change an object, by operations of JSON Patch."""
        self._send("PATCH", path, changes)

    def delete(self, path):
        """Delete an object: a pod ends in order, and is gone when it has."""
        self._send("DELETE", path)

    def _send(self, method, path, changes=()):
        body = json.dumps(changes).encode() if changes else None
        headers = {"Content-Type": "application/json-patch+json"}
        request = urllib.request.Request(f"{self._url}/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


class Kubelet:
    """Runs the pods of a namespace, on hosts of a network if there is one."""

    def __init__(self, url, directory, network):
        self._api = Api(url)
        self._directory = Path(directory)
        self._hosts = self._directory / "hosts"  # written in place: pods have mounted it
        self._hosts.touch()
        self._network = network
        self._numbers = count(2)
        self._pods = {}

    def run(self, ended):
        """Run pods until an event is set; then kill them."""
        try:
            while not ended.wait(_POLL_SECONDS):
                self._look()
        finally:
            for pod in self._pods.values():
                pod.kill()

    def _look(self):
        found, maps = self._api.get("pods"), self._api.get("configmaps")
        self._write_hosts(self._api.get("services"), found)
        contents = {each["metadata"]["name"]: each.get("data", {}) for each in maps}
        for description in found:
            uid = description["metadata"]["uid"]
            if uid not in self._pods:
                self._pods[uid] = self._new_pod(description)
            pod = self._pods[uid]
            with suppress(urllib.error.HTTPError):  # the pod has gone meanwhile
                pod.step(self._api, description, contents)
        gone = self._pods.keys() - {each["metadata"]["uid"] for each in found}
        for uid in gone:
            self._pods.pop(uid).kill()

    def _new_pod(self, description):
        hosts = self._hosts if self._network else None
        if self._network and HOST_NETWORK not in description["metadata"].get("annotations", {}):
            return Pod(description, self._network.next_address(), self._directory, hosts, self._network)
        return Pod(description, f"127.0.1.{next(self._numbers)}", self._directory, hosts)

    def _write_hosts(self, services, pods):
        lines = [f"127.0.0.1 localhost {socket.gethostname()}"]
        lines += [f"{pod['status']['podIP']} {pod['metadata']['name']}" for pod in pods if "podIP" in pod["status"]]
        for service in services:
            name, space = service["metadata"]["name"], service["metadata"]["namespace"]
            wanted = service["spec"].get("selector", {}).items()
            for pod in pods:
                address = pod["status"].get("podIP")
                if address and wanted <= pod["metadata"].get("labels", {}).items():
                    lines.append(f"{address} {name} {name}.{space}.svc {name}.{space}.svc.cluster.local")
        text = "\n".join(lines) + "\n"
        if self._hosts.read_text() != text:
            self._hosts.write_text(text)


class Pod:
    """A pod's processes, which start and end as its object asks for it."""

    def __init__(self, description, address, directory, hosts=None, network=None):
        self._hosts = hosts
        self._network = network
        self._name = description["metadata"]["name"]
        self._uid = description["metadata"]["uid"]
        self._address = address
        self._folder = directory / self._name
        self._created = time.monotonic()
        self._mounts = {}
        self._process = None
        self._started = None
        self._deleted = None
        self._reported = "Pending"

    def step(self, api, description, maps):
        """Start, watch or end the pod; report its state if that has changed."""
        deleted = "deletionTimestamp" in description["metadata"]
        if self._process is None:
            if not deleted and self._is_ready(description, maps):
                self._start(description, maps)
        elif self._process.poll() is not None or KILLED in description["metadata"].get("annotations", {}):
            self.kill()
        elif deleted:
            self._end(description["spec"].get("terminationGracePeriodSeconds", _GRACE_SECONDS))
        code = None if self._process is None else self._process.poll()
        if self._process is not None and code != self._reported:
            status = self._status(description, code)
            api.patch(f"pods/{self._name}/status", {"op": "replace", "path": "/status", "value": status})
            self._reported = code
        if deleted and (self._process is None or code is not None):
            api.patch(f"pods/{self._name}", {"op": "remove", "path": "/metadata/finalizers"})

    def kill(self):
        """Kill all that the pod has started: what a container's end does."""
        if self._process is None:
            return
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("POD_UID") == self._uid:
                    process.kill()
        self._process.wait()

    def _is_ready(self, description, maps):
        wait = float(description["metadata"].get("annotations", {}).get(PULL_SECONDS, 0))
        wanted = [each["configMap"]["name"] for each in description["spec"].get("volumes", []) if "configMap" in each]
        return time.monotonic() - self._created >= wait and set(wanted) <= maps.keys()

    def _start(self, description, maps):
        (container,) = description["spec"]["containers"]
        self._mount(description["spec"].get("volumes", []), container.get("volumeMounts", []), maps)
        environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "TFOS_TEST_RUN") if name in os.environ},
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(_SPARK),
            "POD_UID": self._uid,
            **{each["name"]: self._value(description, each) for each in container.get("env", [])},
        }
        kind, *arguments = map(self._translated, container["args"])
        command = [*_driver(environment), *arguments] if kind == "driver" else _executor(environment)
        mounts = [f"mount -t tmpfs tmpfs {path}" for path in self._mounts if path == "/dev/shm"]
        if self._hosts:
            mounts.append(f'mount --bind "{self._hosts}" /etc/hosts')
        self._started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        work = self._folder / "work"
        work.mkdir()
        (self._folder / "pod.json").write_text(json.dumps(description))
        with open(self._folder / "log", "wb") as log:
            options = {"cwd": work, "env": environment, "stdout": log, "stderr": log, "start_new_session": True}
            if self._network:
                self._process = self._network.host(self._name, command, self._address, mounts, **options).process
            else:
                if self._hosts:
                    command = ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", *command]
                self._process = subprocess.Popen(command, **options)

    def _mount(self, volumes, mounts, maps):
        sources = {each["name"]: each for each in volumes}
        mounts = [each for each in mounts if each["mountPath"] != "/tmp"]  # the tests' own paths begin with it
        self._mounts = {each["mountPath"]: self._folder / each["mountPath"].lstrip("/") for each in mounts}
        for each in mounts:
            source = sources[each["name"]]
            if "hostPath" in source:
                self._mounts[each["mountPath"]] = source["hostPath"]["path"]
                continue
            place = self._mounts[each["mountPath"]]
            place.mkdir(parents=True, exist_ok=True)
            source = source.get("configMap", {})
            contents = maps[source["name"]] if source else {}
            for item in source.get("items") or [{"key": key, "path": key} for key in contents]:
                text = contents[item["key"]]
                is_pod = item["path"].endswith(".yml")  # whose paths are those of other pods
                (place / item["path"]).write_text(text if is_pod else self._translated(text))

    def _translated(self, text):
        for path in sorted(self._mounts, key=len, reverse=True):
            text = text.replace(path, str(self._mounts[path]))
        return text

    def _value(self, description, variable):
        if "valueFrom" not in variable:
            return self._translated(variable.get("value", ""))
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        return {"status.podIP": self._address, "metadata.name": self._name}.get(path) or description["metadata"][
            path.partition(".")[2]
        ]

    def _end(self, grace):
        if self._deleted is None:
            self._deleted = time.monotonic()
            if self._network:
                self._process.stdin.close()
            else:
                self._process.send_signal(signal.SIGTERM)
        elif time.monotonic() - self._deleted > grace:
            self.kill()

    def _status(self, description, code):
        killed, _, message = description["metadata"].get("annotations", {}).get(KILLED, "").partition(": ")
        if code is None:
            phase, state = "Running", {"running": {"startedAt": self._started}}
        else:
            phase = "Failed" if code else "Succeeded"
            code = 128 + signal.SIGKILL if killed else code if code >= 0 else 128 - code
            of_container = killed if killed and not message else "Error" if code else "Completed"
            state = {"terminated": {"exitCode": code, "reason": of_container}}
        name = description["spec"]["containers"][0]["name"]
        container = {"name": name, "image": "none", "imageID": "", "restartCount": 0, "ready": code is None}
        return {
            "phase": phase,
            "podIP": self._address,
            "startTime": self._started,
            "conditions": [{"type": "Ready", "status": "True" if code is None else "False"}],
            "containerStatuses": [{**container, "state": state}],
            **({"reason": killed, "message": message} if message else {}),
        }


def _driver(environment):
    """Return the command of a driver, as the entry point of Spark's image makes it of the environment."""
    address = environment["SPARK_DRIVER_BIND_ADDRESS"]
    settings = {"spark.driver.bindAddress": address, "spark.executorEnv.SPARK_DRIVER_POD_IP": address}
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [f"{_SPARK}/bin/spark-submit", *given, "--deploy-mode", "client"]


def _executor(environment):
    """Return the command of an executor, likewise."""
    java = os.path.join(environment["JAVA_HOME"], "bin/java") if "JAVA_HOME" in environment else "java"
    options = [value for name, value in sorted(environment.items()) if name.startswith("SPARK_JAVA_OPT_")]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    backend = {
        "--driver-url": "SPARK_DRIVER_URL",
        "--executor-id": "SPARK_EXECUTOR_ID",
        "--cores": "SPARK_EXECUTOR_CORES",
        "--app-id": "SPARK_APPLICATION_ID",
        "--hostname": "SPARK_EXECUTOR_POD_IP",
        "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "--podName": "SPARK_EXECUTOR_POD_NAME",
    }
    return [
        java,
        *options,
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        f"{environment['SPARK_CONF_DIR']}:{_SPARK}/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *(word for flag, name in backend.items() for word in (flag, environment[name])),
    ]


def main(directory):
    """Run pods until the standard input ends."""
    with nullcontext() if hosts.what_is_missing() else hosts.Network() as network:
        print(network.address if network else "127.0.0.1", flush=True)
        _run(sys.stdin.readline().strip(), directory, network)


def _run(url, directory, network):
    ended = Event()

    def wait():
        sys.stdin.read()
        ended.set()

    Thread(target=wait, daemon=True).start()
    Kubelet(url, directory, network).run(ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
