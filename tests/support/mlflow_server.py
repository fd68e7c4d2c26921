"""MLflow's own server, on a local SQLite store."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

_START_SECONDS = 90
# It reports nothing to anybody, and runs no jobs of its own.
environment = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


class MlflowServer:
    """A server at a free port of this machine.

    Parameters
    ----------
    directory : str
        Where it keeps its store and its artifacts.

    Attributes
    ----------
    uri : str
        Its address.
    """

    def __init__(self, directory):
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        self.uri = f"http://127.0.0.1:{port}"
        self._log = Path(directory, "server.log")
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--backend-store-uri", f"sqlite:///{directory}/store.db", "--workers", "1"]
        command += ["--artifacts-destination", f"{directory}/artifacts"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=directory,
                env={**os.environ, **environment},
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
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
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
