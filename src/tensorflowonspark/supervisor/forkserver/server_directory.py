"""The private directory with the socket and the locks of an executor's fork server."""

import fcntl
import hashlib
import os
import shutil
import socket
import struct
from contextlib import suppress
from pathlib import Path

from tensorflowonspark.processes import open_private, place

GO = b"g"  # confirms a forked process, which otherwise ends at once
SERVER = "server"  # the lock of the process that listens
USERS = "users"  # the lock that possible clients share

_SOCKET = "socket"
_PEER = struct.Struct("3i")  # struct ucred of man 7 unix: pid, uid, gid


class ServerDirectory:
    """The directory of a fork server, with its socket and its locks.

    It is accessed through a file descriptor, so that it is the directory that was verified when it was opened, and its
    path may be longer than a socket's.

    If it is missing and not to be made, belongs to another user, or is accessible to others, it raises `OSError`.
    """

    def __init__(self, path: Path, *, make: bool) -> None:
        self._path = path
        if make:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
        self._descriptor = open_private(path)

    @classmethod
    def of(cls, local_directory: str, executor_pid: int) -> Path:
        """Return the path for an executor.

        Executors in several containers may share a local directory, and have equal pids.
        """
        own = hashlib.sha256(place().encode()).hexdigest()[:8]
        return Path(local_directory) / f"tfos-warm-{executor_pid}-{own}"

    def exists(self) -> bool:
        """Return whether the directory still has its path: Spark removes it with the application."""
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(self._descriptor))
        except OSError:
            return False

    def lock(self, name: str) -> int | None:
        """Return a file descriptor that holds a lock until it is closed; None if another process holds or shares it."""
        descriptor = self.open(name)
        if take(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def is_unlocked(self, name: str) -> bool:
        """Return whether no process holds or shares a lock."""
        descriptor = self.open(name)
        try:
            return is_free(descriptor)
        finally:
            os.close(descriptor)

    def share(self, name: str) -> int:
        """Return a file descriptor that shares a lock until it is closed."""
        descriptor = self.open(name)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def open(self, name: str) -> int:
        """Return a file descriptor of a lock's file, which is created if it is missing."""
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self._descriptor)

    def listen(self) -> socket.socket:
        """Return a listening socket."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._address)
        listener.listen()
        return listener

    def connect(self, seconds: float) -> socket.socket:
        """Return a connection to the server, with a time-out.

        If there is no server, or it is another user's process, it raises `OSError`.
        """
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(seconds)
        try:
            connection.connect(self._address)
            if not is_own_peer(connection):
                raise PermissionError(f"the server in {self._path} belongs to another user")
        except OSError:
            connection.close()
            raise
        return connection

    def hide(self) -> None:
        """Remove the socket, also one that a killed server has left."""
        with suppress(FileNotFoundError):
            os.unlink(_SOCKET, dir_fd=self._descriptor)

    def remove(self) -> None:
        """Remove the directory, unless another one has its path."""
        if self.exists():
            shutil.rmtree(self._path, ignore_errors=True)

    def close(self) -> None:
        """Close the file descriptor."""
        os.close(self._descriptor)

    @property
    def _address(self) -> str:
        return f"/proc/self/fd/{self._descriptor}/{_SOCKET}"


def take(descriptor: int) -> bool:
    """Try to take the lock on an open file; return whether it succeeded."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(descriptor: int) -> bool:
    """Return whether no other process holds or shares the lock on an open file."""
    free = take(descriptor)
    if free:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    return free


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether the other end of a Unix socket is a process of this user."""
    _, user, _ = _peer(connection)
    return bool(user == os.getuid())


def peer_is_stopped(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket is stopped, or has ended."""
    pid, _, _ = _peer(connection)
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "tTXZ"


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    """Return the pid, user and group of the process at the other end."""
    pid, user, group = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, user, group
