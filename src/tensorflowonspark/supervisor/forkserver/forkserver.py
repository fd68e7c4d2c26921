"""The fork server: forks nodes on request, and reports their exit codes.

It has one thread, beside one that watches the executor, and never starts TensorFlow's runtime. On a connection the
client sends the node's file descriptors and a line with its properties; the server replies with the node's pid or a
refusal; the client sends ``GO``, without which the node ends before it has any effect; and the server sends the node's
exit code.
"""

import json
import multiprocessing
import os
import select
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorflowonspark.node import main
from tensorflowonspark.processes import FAMILY, process_name
from tensorflowonspark.supervisor.forkserver.compatibility import ImportProperties, shadowed
from tensorflowonspark.supervisor.forkserver.server_directory import GO, USERS, ServerDirectory, is_free, is_own_peer

_REQUEST_SECONDS = 1.0  # for a client's request
_CHECK_SECONDS = 1.0  # between checks whether the server is still in use
_DESCRIPTORS = 2  # the node's pipe, its output


@dataclass(frozen=True)
class _Request:
    """A request for a node."""

    connection: socket.socket
    descriptors: list[int]
    properties: ImportProperties


class ForkServerProcess:
    """Forks nodes; it listens from its creation on.

    The lock is the descriptor with that of the server, `path` is ``sys.path`` at its start. It ends after so many
    seconds without a cluster on this executor.
    """

    def __init__(
        self, directory: ServerDirectory, lock: int, properties: ImportProperties, path: list[str], idle_seconds: float
    ) -> None:
        self._directory = directory
        self._lock = lock
        self._properties = properties
        self._path = path
        self._idle_seconds = idle_seconds
        # Variables that imports have set, as the nodes' own imports would.
        self._set_by_imports = {
            name: value for name, value in os.environ.items() if properties.environment.get(name) != value
        }
        self._nodes: dict[int, socket.socket] = {}  # by pid, for the exit code
        self._users = directory.open(USERS)
        self._used = time.monotonic()
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler no byte would wake the loop
        self._listener: socket.socket | None = directory.listen()

    def run(self) -> bool:
        """Serve until the server is no longer used and return False; return True in each forked node."""
        while self._listener or self._nodes:
            listening = [self._listener] if self._listener else []
            ready, _, _ = select.select([self._woken, *listening], [], [], _CHECK_SECONDS)
            if self._woken in ready:
                self._woken.recv(4096)
                self._reap()
            if self._listener in ready:
                request = self._accept(self._listener)
                if request and not self._fork(request):
                    self._become_node(request)
                    return True
            self._check_use()
        return False

    def _accept(self, listener: socket.socket) -> _Request | None:
        """Receive a request; return it if the node can be forked, else send the refusal."""
        connection, _ = listener.accept()
        connection.settimeout(_REQUEST_SECONDS)
        descriptors: list[int] = []
        with suppress(OSError, ValueError, TypeError, KeyError):
            if is_own_peer(connection):
                _, descriptors, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS)
                properties = ImportProperties(**json.loads(connection.makefile("rb").readline()))
                refusal = self._refusal(properties)
                if not refusal and len(descriptors) == _DESCRIPTORS:
                    return _Request(connection, descriptors, properties)
                _reply(connection, {"refusal": refusal})
                if refusal and not descriptors:
                    self._retire()
        _close(connection, descriptors)
        return None

    def _refusal(self, properties: ImportProperties) -> str:
        if not properties.fits(self._properties):
            return "its environment differs from the fork server's"
        others = shadowed()
        return f"these modules differ from the fork server's: {', '.join(others)}" if others else ""

    def _fork(self, request: _Request) -> int:
        """Fork; return the child's pid, or 0 in the child."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of native threads, which are safe here
            pid = os.fork()
        if pid:
            self._nodes[pid] = request.connection
            _reply(request.connection, {"pid": pid})
            for descriptor in request.descriptors:
                os.close(descriptor)
        return pid

    def _become_node(self, request: _Request) -> None:
        """Close the server's resources in a child, and wait for its confirmation."""
        assert self._listener is not None
        signal.set_wakeup_fd(-1)
        for each in (self._listener, self._woken, self._waker, *self._nodes.values()):
            each.close()
        self._directory.close()
        for descriptor in (self._lock, self._users):
            os.close(descriptor)
        select.select([request.connection], [], [])  # without a time-out: the client believes in it
        try:
            confirmed = request.connection.recv(1) == GO
        except OSError:
            confirmed = False
        if not confirmed:  # the client has started the node with exec
            os._exit(0)
        request.connection.close()
        pipe, output = request.descriptors
        program = str(Path(main.__file__).with_name("__main__.py"))
        _reset_child(
            {**request.properties.environment, **self._set_by_imports},
            [program, str(pipe)],
            self._path,
            output,
        )

    def _reap(self) -> None:
        for pid, connection in list(self._nodes.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _reply(connection, {"exit": os.waitstatus_to_exitcode(status)})
                connection.close()
                del self._nodes[pid]

    def _check_use(self) -> None:
        """Retire if the application has ended, or no client has used the server for the idle time."""
        if self._listener is None:
            return
        if self._nodes or not is_free(self._users):
            self._used = time.monotonic()
        if not self._directory.exists() or time.monotonic() - self._used > self._idle_seconds:
            self._directory.remove()
            self._retire()

    def _retire(self) -> None:
        """Free the place for another server; this one waits for the ends of its nodes."""
        if self._listener is not None:
            self._directory.hide()
            self._listener.close()
            self._listener = None
            os.close(self._lock)


def _reply(connection: socket.socket, reply: dict[str, str | int]) -> None:
    with suppress(OSError):  # the client has ended
        connection.sendall(json.dumps(reply).encode() + b"\n")


def _close(connection: socket.socket, descriptors: list[int]) -> None:
    connection.close()
    for descriptor in descriptors:
        os.close(descriptor)


def _reset_child(environment: Mapping[str, str], arguments: Sequence[str], path: Sequence[str], output: int) -> None:
    """Reset a forked process to the state of one that was started with ``exec``.

    The environment is the whole one, arguments and path the new ``sys.argv`` and ``sys.path``. The descriptor for the
    output is closed.
    """
    os.setsid()
    # The process name identifies the node's family; the command line stays that of the fork server.
    Path("/proc/self/comm").write_text(process_name(environment.get(FAMILY, "tfos-node")))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv[:] = arguments
    sys.path[:] = path
    tempfile.tempdir = None  # depends on the environment
    np.random.seed()  # `random` does so by itself
    multiprocessing.current_process().authkey = os.urandom(32)
