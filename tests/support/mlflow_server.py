"""MLflow's own server, on a local SQLite store, and its server of a model."""

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import venv
from contextlib import suppress
from pathlib import Path

_START_SECONDS = 90
# It reports nothing to anybody, and runs no jobs of its own.
environment = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


class Server:
    """A server at a free port of this machine.

    Parameters
    ----------
    command : sequence of str
        What starts it, but for its address.
    directory : path
        Where it works, and keeps its log.
    health : str
        What it answers when it is up.
    env : mapping of str to str
        The environment in which it starts.

    Attributes
    ----------
    uri : str
        Its address.
    """

    def __init__(self, command, directory, health, env):
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        self.uri = f"http://127.0.0.1:{port}"
        self._health = health
        self._log = Path(directory, "server.log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=directory,
                env={**env, **environment},
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self):
        end = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < end:
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{self.uri}/{self._health}", timeout=5).close()
                return
            time.sleep(0.2)
        raise RuntimeError(f"MLflow's server did not come up:\n{self._log.read_text()}")

    def close(self):
        """End it, with the processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)


def tracking_server(directory):
    """Start MLflow's own server, whose store and artifacts are in a directory."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{directory}/store.db"]
    command += ["--workers", "1", "--artifacts-destination", f"{directory}/artifacts"]
    return Server(command, directory, "health", os.environ)


class ModelServer(Server):
    """A model as ``mlflow models serve`` serves it, in an environment that `own_environment` has made."""

    def __init__(self, python, model, tracking, directory):
        env = {**without_paths(), "MLFLOW_TRACKING_URI": tracking, "TF_CPP_MIN_LOG_LEVEL": "2"}
        env["PATH"] = f"{Path(python).parent}{os.pathsep}{env['PATH']}"
        command = [python, "-m", "mlflow", "models", "serve", "-m", model, "--env-manager", "local"]
        super().__init__(command, directory, "ping", env)

    def answer(self, rows):
        """Return the server's predictions for rows of pandas, a dict for each; its error as a text."""
        given = {"dataframe_split": json.loads(rows.to_json(orient="split", date_format="iso", index=False))}
        request = urllib.request.Request(
            f"{self.uri}/invocations", json.dumps(given).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["predictions"]
        except urllib.error.HTTPError as error:
            return json.load(error)["message"]


_LEFT_OUT = ("tensorflowonspark", "__editable__", "pyspark", "py4j", "google_crc32c", "psutil", "fsspec")


def own_environment(directory):
    """Make an environment with links to the packages of this one, but for this package and those that it needs alone.

    It returns its Python.
    """
    venv.create(directory, symlinks=True)
    (packages,) = Path(directory).glob("lib/python*/site-packages")
    for each in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(each).iterdir():
            left_out = entry.name.startswith(_LEFT_OUT) or entry.suffix == ".pth"
            if not left_out and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    python = Path(directory, "bin/python")
    script = python.with_name("uvicorn")  # by which MLflow serves
    script.write_text(f'#!/bin/sh\nexec {python} -m uvicorn "$@"\n')
    script.chmod(0o755)
    return str(python)


def without_paths():
    """Return the environment of this process, but for what names further packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
