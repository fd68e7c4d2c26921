"""Client of the executor's fork server, which forks a node instead of starting it with ``exec``.

After any failure here the node is started with ``exec``, without a long wait. A busy server is waited for: it forks one
node after another, and to start them with ``exec`` would take a busy host longer.
"""

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from typing import Any

from tensorflowonspark import processes
from tensorflowonspark.processes import wait_for_end, watch_process
from tensorflowonspark.supervisor.forkserver.compatibility import ImportProperties
from tensorflowonspark.supervisor.forkserver.server_directory import GO, SERVER, USERS, ServerDirectory, peer_is_stopped

_REPLY_SECONDS = 1.0  # for the server to reply, which takes milliseconds; then it is examined
_BUSY_SECONDS = 15.0  # the same, for a server that is not stopped
_IMPORT_SECONDS = 60.0  # for the server to import TensorFlow, or JAX, before the first node, which takes up to 9
_LOOK_SECONDS = 0.02  # between looks at whether it has
_NICENESS = 5  # of the import beside running programs, which have priority
_IDLE_SECONDS = 600.0  # without a cluster on the executor, after which its server ends
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class ForkServer:
    """The fork server of an executor, whether or not it is running.

    It is found in Spark's directory for temporary files, and ends with the executor, or after so many seconds without a
    cluster on it. The environment is the whole one of this supervisor's node.
    """

    def __init__(
        self,
        local_directory: str,
        executor_pid: int,
        environment: Mapping[str, str],
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        self._path = ServerDirectory.of(local_directory, executor_pid)
        self._executor_pid = executor_pid
        self._properties = ImportProperties(dict(environment))
        self._idle_seconds = idle_seconds
        self._share: int | None = None  # a shared lock, by which the server is in use until this process ends

    @staticmethod
    def is_safe(environment: Mapping[str, str]) -> bool:
        """Return whether nodes may be forked: drivers of GPUs and Keras with torch do not allow it."""
        return (
            sys.platform == "linux"
            and environment.get("KERAS_BACKEND", "tensorflow") in ("tensorflow", "jax")
            and not any(Path(device).exists() for device in _GPU_DEVICES)
        )

    def fork(self, pipe: int, output: int, *, first: bool = False) -> "ForkedProcess | None":
        """Return a new node; None without a server, or if the server can't fork a node like this one.

        The descriptor `pipe` is the one in the node's arguments (`processes.parent_pipe`). The `first` node starts a
        server if there is none, and waits until it has imported what nodes need.
        """
        try:
            connection = self._connect(first=first)
        except OSError:
            return None
        process = None
        with suppress(OSError, ValueError):
            replies = connection.makefile("rb")
            reply = self._request(connection, replies, [pipe, output])
            if "pid" in reply:
                connection.sendall(GO)
                process = ForkedProcess(reply["pid"], connection, replies)
            elif "refusal" in reply:
                os.write(output, f"DEBUG:tensorflowonspark:started with exec: {reply['refusal']}\n".encode())
        if process is None:
            connection.close()
        return process

    def ensure(self) -> None:
        """Start a server for nodes like this one, unless there is one."""
        with suppress(OSError, ValueError):
            directory = ServerDirectory(self._path, make=True)
            try:
                self._share_use(directory)
                if self._is_free(directory):
                    self._start(_NICENESS)
            finally:
                directory.close()

    def _connect(self, *, first: bool) -> socket.socket:
        directory = ServerDirectory(self._path, make=first)
        try:
            connection = self._connect_first(directory) if first else directory.connect(_REPLY_SECONDS)
            self._share_use(directory)
            return connection
        finally:
            directory.close()

    def _connect_first(self, directory: ServerDirectory) -> socket.socket:
        """Connect to the server, which is started if there is none, when it has imported what nodes need."""
        end = time.monotonic() + _IMPORT_SECONDS
        server: processes.Process | None = None
        while True:
            with suppress(OSError):
                return directory.connect(_REPLY_SECONDS)
            ended = server is not None and server.poll() is not None
            # Nobody looks at the lock while a server is about to take it.
            if (server is None or ended) and directory.is_unlocked(SERVER):
                if ended:
                    raise ConnectionError("the fork server can't import TensorFlow or JAX, or can't fork after that")
                server = self._start(niceness=0)
            if time.monotonic() > end:
                raise TimeoutError("the fork server has not imported TensorFlow or JAX in time")
            time.sleep(_LOOK_SECONDS)

    def _share_use(self, directory: ServerDirectory) -> None:
        if self._share is None:
            self._share = directory.share(USERS)

    def _request(self, connection: socket.socket, replies: Any, descriptors: Sequence[int]) -> dict[str, Any]:
        socket.send_fds(connection, [b"\0"], descriptors)
        connection.sendall(json.dumps(asdict(self._properties)).encode() + b"\n")
        end = time.monotonic() + _BUSY_SECONDS
        while not select.select([connection], [], [], _REPLY_SECONDS)[0]:
            if time.monotonic() > end or peer_is_stopped(connection):
                return {}
        reply = json.loads(replies.readline())
        return reply if isinstance(reply, dict) else {}

    def _is_free(self, directory: ServerDirectory) -> bool:
        """Return whether there is no server; one with other properties ends."""
        lock = directory.lock(SERVER)
        if lock is None:
            with suppress(FileNotFoundError, ConnectionRefusedError), directory.connect(_REPLY_SECONDS) as connection:
                return bool(self._request(connection, connection.makefile("rb"), []).get("refusal"))
            return False  # it is importing
        os.close(lock)
        return True

    def _start(self, niceness: int) -> processes.Process:
        environment = {name: value for name, value in self._properties.environment.items() if name != processes.FAMILY}
        process, pipe = processes.start("tensorflowonspark.supervisor.forkserver", environment, subprocess.DEVNULL)
        pipe.send((self._path, self._executor_pid, self._idle_seconds, niceness))
        pipe.close()
        Thread(target=process.wait, daemon=True).start()
        return process


class ForkedProcess:
    """A process that a fork server has forked, with the interface of ``subprocess.Popen``.

    The pid is also that of its process group. The server reports the exit code on the connection, whose file for
    reading is `replies`; if the server ends first, the exit code is `processes.UNKNOWN_EXIT`.
    """

    def __init__(self, pid: int, connection: socket.socket, replies: Any) -> None:
        self.pid = pid
        self._connection = connection
        self._replies = replies
        self._exit_code: int | None = None
        self._ended = Event()
        connection.settimeout(None)
        Thread(target=self._receive, daemon=True).start()
        watch_process(pid, self._stop_waiting)

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self._exit_code is not None
        return self._exit_code

    def _stop_waiting(self) -> None:
        """Stop waiting for the exit code of a process that has ended: a stopped server sends none."""
        if not self._ended.wait(_REPLY_SECONDS):
            with suppress(OSError):  # it has just ended
                self._connection.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> None:
        try:
            self._exit_code = int(json.loads(self._replies.readline())["exit"])
        except (OSError, ValueError):
            wait_for_end(self.pid)
            self._exit_code = processes.UNKNOWN_EXIT
        self._connection.close()
        self._ended.set()
