"""Client of the executor's fork server: a node that is forked instead of started with ``exec``.

Whatever goes wrong here means that the node starts as any other does, and nobody has waited for long.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from typing import Any

from tensorflowonspark import processes
from tensorflowonspark.processes import wait_for_end, watch_process
from tensorflowonspark.supervisor.forkserver.compatibility import ImportProperties
from tensorflowonspark.supervisor.forkserver.rendezvous import GO, SERVER, USERS, Rendezvous

__all__ = ["ForkServer", "ForkedProcess"]

_ANSWER_SECONDS = 1.0  # for the server to answer: it takes milliseconds, or something is wrong with it
_IDLE_SECONDS = 600.0  # without a cluster on the executor, after which the memory of its server is given back
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class ForkServer:
    """An executor's fork server, whether or not it is there yet.

    Parameters
    ----------
    local_directory : str
        Where Spark keeps temporary files on this executor.
    executor_pid : int
        The executor's process, with which the server ends.
    environment : mapping
        The whole environment of this supervisor's node.
    idle_seconds : float
        Without a cluster on the executor, after which the server ends.
    """

    def __init__(
        self,
        local_directory: str,
        executor_pid: int,
        environment: Mapping[str, str],
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        self._path = Rendezvous.of(local_directory, executor_pid)
        self._executor_pid = executor_pid
        self._outfit = ImportProperties(dict(environment))
        self._idle_seconds = idle_seconds
        self._share: int | None = None  # says, for as long as this process lives, that the server is wanted

    @staticmethod
    def is_safe(environment: Mapping[str, str]) -> bool:
        """Tell whether nodes may be forked: GPUs' drivers don't allow it, and neither do Keras's other backends."""
        return (
            sys.platform == "linux"
            and environment.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
            and not any(Path(device).exists() for device in _GPU_DEVICES)
        )

    def fork(self, pipe: int, output: int) -> "ForkedProcess | None":
        """Return a new node; None if there is no server, or it can't fork one that is like a fresh process.

        Parameters
        ----------
        pipe : int
            The descriptor that the node finds in its arguments (`children.parent_pipe`).
        output : int
            Where its output goes.
        """
        try:
            connection = self._connected()
        except OSError:
            return None
        process = None
        with suppress(OSError, ValueError):
            answers = connection.makefile("rb")
            answer = self._ask(connection, answers, [pipe, output])
            if "pid" in answer:
                connection.sendall(GO)
                process = ForkedProcess(answer["pid"], connection, answers)
            elif "refusal" in answer:
                os.write(output, f"DEBUG:tensorflowonspark:started afresh, since {answer['refusal']}\n".encode())
        if process is None:
            connection.close()
        return process

    def ensure(self) -> None:
        """See to it that there is a server for nodes like this one: start it, unless there is one."""
        with suppress(OSError, ValueError):
            home = Rendezvous(self._path, make=True)
            try:
                self._note(home)
                if self._is_free(home):
                    self._start()
            finally:
                home.close()

    def _connected(self) -> socket.socket:
        home = Rendezvous(self._path, make=False)
        try:
            connection = home.connect(_ANSWER_SECONDS)
            self._note(home)
            return connection
        finally:
            home.close()

    def _note(self, home: Rendezvous) -> None:
        if self._share is None:
            self._share = home.share(USERS)

    def _ask(self, connection: socket.socket, answers: Any, descriptors: Sequence[int]) -> dict[str, Any]:
        socket.send_fds(connection, [b"\0"], descriptors)
        connection.sendall(json.dumps(asdict(self._outfit)).encode() + b"\n")
        answer = json.loads(answers.readline())
        return answer if isinstance(answer, dict) else {}

    def _is_free(self, home: Rendezvous) -> bool:
        """Tell whether no server is there; one with another outfit makes room."""
        lock = home.lock(SERVER)
        if lock is None:
            with suppress(FileNotFoundError, ConnectionRefusedError), home.connect(_ANSWER_SECONDS) as connection:
                return bool(self._ask(connection, connection.makefile("rb"), []).get("refusal"))
            return False  # it is importing
        os.close(lock)
        return True

    def _start(self) -> None:
        environment = {name: value for name, value in self._outfit.environment.items() if name != processes.FAMILY}
        process, pipe = processes.start("tensorflowonspark.supervisor.forkserver", environment, subprocess.DEVNULL)
        pipe.send((self._path, self._executor_pid, self._idle_seconds))
        pipe.close()
        Thread(target=process.wait, daemon=True).start()


class ForkedProcess:
    """A process that a fork server has forked, as ``subprocess`` shows those of its own.

    Parameters
    ----------
    pid : int
        Its pid, which is also its group's.
    connection : socket
        Over which the server tells its end; if the server dies first, the exit code is `children.UNKNOWN_EXIT`.
    answers : file
        What is read from the connection.
    """

    def __init__(self, pid: int, connection: socket.socket, answers: Any) -> None:
        self.pid = pid
        self._connection = connection
        self._answers = answers
        self._exit_code: int | None = None
        self._ended = Event()
        connection.settimeout(None)
        Thread(target=self._listen, daemon=True).start()
        watch_process(pid, self._hang_up)

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self._exit_code is not None
        return self._exit_code

    def _hang_up(self) -> None:
        """Wait no longer for the exit code of a process that has ended: a server that is stopped sends none."""
        if not self._ended.wait(_ANSWER_SECONDS):
            with suppress(OSError):  # it has ended meanwhile
                self._connection.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        try:
            self._exit_code = int(json.loads(self._answers.readline())["exit"])
        except (OSError, ValueError):
            wait_for_end(self.pid)
            self._exit_code = processes.UNKNOWN_EXIT
        self._connection.close()
        self._ended.set()
