"""The fork server: forks a node on request, and reports how it ended.

One thread does that, beside one that watches the executor; TensorFlow's runtime is never started here. What goes over a
connection: the node's descriptors, and a line with the outfit that it is to have; back, the node's pid, or why there is
none; ``GO``, without which the node ends before it has touched anything; back, in the end, its exit code.
"""

import json
import os
import select
import signal
import socket
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorflowonspark.node import main
from tensorflowonspark.supervisor.forkserver.child_reset import reset_child
from tensorflowonspark.supervisor.forkserver.compatibility import ImportProperties, shadowed
from tensorflowonspark.supervisor.forkserver.rendezvous import GO, USERS, Rendezvous, is_free, is_own_peer

__all__ = ["Server"]

_ASK_SECONDS = 1.0  # for who has connected to say what it wants
_LOOK_SECONDS = 1.0  # between looks at whether the server is still wanted
_DESCRIPTORS = 2  # the node's pipe, its output


@dataclass(frozen=True)
class _Request:
    """A node that somebody waits for."""

    connection: socket.socket
    descriptors: list[int]
    outfit: ImportProperties


class Server:
    """Listens from its making on.

    Parameters
    ----------
    home : Home
        Where it is found.
    lock : int
        The descriptor by which this process is the only server there.
    outfit : Outfit
        What this process was started with.
    path : list of str
        What ``sys.path`` was then.
    idle_seconds : float
        Without a cluster on this executor, after which it ends.
    """

    def __init__(
        self, home: Rendezvous, lock: int, outfit: ImportProperties, path: list[str], idle_seconds: float
    ) -> None:
        self._home = home
        self._lock = lock
        self._outfit = outfit
        self._path = path
        self._idle_seconds = idle_seconds
        # Imports set variables too, and the nodes' own imports would have done the same.
        self._set_by_imports = {
            name: value for name, value in os.environ.items() if outfit.environment.get(name) != value
        }
        self._nodes: dict[int, socket.socket] = {}  # by pid, who is to hear of the end
        self._users = home.open(USERS)
        self._used = time.monotonic()
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler there must be, for the byte that wakes the loop
        self._listener: socket.socket | None = home.listen()

    def run(self) -> bool:
        """Serve; return True in each node that has been forked, and False when the server is no longer wanted."""
        while self._listener or self._nodes:
            listening = [self._listener] if self._listener else []
            ready, _, _ = select.select([self._woken, *listening], [], [], _LOOK_SECONDS)
            if self._woken in ready:
                self._woken.recv(4096)
                self._reap()
            if self._listener in ready:
                request = self._accept(self._listener)
                if request and not self._fork(request):
                    self._become_node(request)
                    return True
            self._look_around()
        return False

    def _accept(self, listener: socket.socket) -> _Request | None:
        """Hear what somebody wants; return the request for a node, if it is one that can be forked."""
        connection, _ = listener.accept()
        connection.settimeout(_ASK_SECONDS)
        descriptors: list[int] = []
        with suppress(OSError, ValueError, TypeError, KeyError):
            if is_own_peer(connection):
                _, descriptors, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS)
                outfit = ImportProperties(**json.loads(connection.makefile("rb").readline()))
                refusal = self._refusal(outfit)
                if not refusal and len(descriptors) == _DESCRIPTORS:
                    return _Request(connection, descriptors, outfit)
                _say(connection, {"refusal": refusal})
                if refusal and not descriptors:
                    self._retire()
        _close(connection, descriptors)
        return None

    def _refusal(self, outfit: ImportProperties) -> str:
        if not outfit.fits(self._outfit):
            return "the node wants another environment than the fork server has"
        others = shadowed()
        return f"there are other modules now than the fork server has: {', '.join(others)}" if others else ""

    def _fork(self, request: _Request) -> int:
        """Fork; return the child's pid in the server, and 0 in the child."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of native threads, which are known here
            pid = os.fork()
        if pid:
            self._nodes[pid] = request.connection
            _say(request.connection, {"pid": pid})
            for descriptor in request.descriptors:
                os.close(descriptor)
        return pid

    def _become_node(self, request: _Request) -> None:
        """Leave all of the server's behind (in a child)."""
        assert self._listener is not None
        signal.set_wakeup_fd(-1)
        for each in (self._listener, self._woken, self._waker, *self._nodes.values()):
            each.close()
        self._home.close()
        for descriptor in (self._lock, self._users):
            os.close(descriptor)
        try:
            wanted = request.connection.recv(1) == GO
        except OSError:
            wanted = False
        if not wanted:  # who asked has gone another way meanwhile
            os._exit(0)
        request.connection.close()
        pipe, output = request.descriptors
        program = str(Path(main.__file__).with_name("__main__.py"))
        reset_child(
            {**request.outfit.environment, **self._set_by_imports},
            [program, str(pipe)],
            self._path,
            output,
        )

    def _reap(self) -> None:
        for pid, connection in list(self._nodes.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _say(connection, {"exit": os.waitstatus_to_exitcode(status)})
                connection.close()
                del self._nodes[pid]

    def _look_around(self) -> None:
        """Retire if the application is gone, or nothing has been wanted for long."""
        if self._listener is None:
            return
        if self._nodes or not is_free(self._users):
            self._used = time.monotonic()
        if not self._home.is_there() or time.monotonic() - self._used > self._idle_seconds:
            self._home.remove()
            self._retire()

    def _retire(self) -> None:
        """Make room for another server; what is left is to wait for the ends of the nodes."""
        if self._listener is not None:
            self._home.hide()
            self._listener.close()
            self._listener = None
            os.close(self._lock)


def _say(connection: socket.socket, answer: dict[str, str | int]) -> None:
    with suppress(OSError):  # who asked is gone
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _close(connection: socket.socket, descriptors: list[int]) -> None:
    connection.close()
    for descriptor in descriptors:
        os.close(descriptor)
