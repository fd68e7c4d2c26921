"""The directory in which an executor's fork server is found, private to one user."""

import fcntl
import os
import shutil
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

__all__ = ["GO", "SERVER", "USERS", "Rendezvous", "is_free", "is_own_peer", "take"]

GO = b"g"  # the word without which a forked process ends at once
SERVER = "server"  # the lock of the one process that listens
USERS = "users"  # the lock that all share who may want a node

_SOCKET = "socket"
_PEER = struct.Struct("3i")  # struct ucred of man 7 unix: pid, uid, gid


class Rendezvous:
    """The directory of a fork server, with its socket and its locks.

    It is used through a descriptor, so that what was looked at when it was opened is what is used, and its path may be
    longer than that of a socket.

    Parameters
    ----------
    path : Path
        The directory.
    make : bool
        Whether to make it if it isn't there.

    Raises
    ------
    OSError
        If it is not there, or belongs to somebody else, or others may look into it.
    """

    def __init__(self, path: Path, *, make: bool) -> None:
        self._path = path
        if make:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(self._descriptor)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            self.close()
            raise PermissionError(f"{path} is not this user's alone")

    @classmethod
    def of(cls, local_directory: str, executor_pid: int) -> Path:
        """Return where the fork server of an executor is found."""
        return Path(local_directory) / f"tfos-warm-{executor_pid}"

    def is_there(self) -> bool:
        """Tell whether the directory is still found under its name: Spark removes it with the application."""
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(self._descriptor))
        except OSError:
            return False

    def lock(self, name: str) -> int | None:
        """Return a descriptor that holds a lock until it is closed; None if another process has it or shares it."""
        descriptor = self.open(name)
        if take(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def share(self, name: str) -> int:
        """Return a descriptor that shares a lock until it is closed, or its process ends."""
        descriptor = self.open(name)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def open(self, name: str) -> int:
        """Return a descriptor of the file that a lock is on; it is made if need be."""
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self._descriptor)

    def listen(self) -> socket.socket:
        """Return a socket that listens here."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._address)
        listener.listen()
        return listener

    def connect(self, seconds: float) -> socket.socket:
        """Return a connection to who listens here, with a time-out.

        Raises
        ------
        OSError
            If nobody does, or it is another user's process.
        """
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(seconds)
        try:
            connection.connect(self._address)
            if not is_own_peer(connection):
                raise PermissionError(f"what listens in {self._path} is another user's")
        except OSError:
            connection.close()
            raise
        return connection

    def hide(self) -> None:
        """Remove the socket, so that nobody connects any more; who was killed has left one behind."""
        with suppress(FileNotFoundError):
            os.unlink(_SOCKET, dir_fd=self._descriptor)

    def remove(self) -> None:
        """Remove the directory, if it is still this one."""
        if self.is_there():
            shutil.rmtree(self._path, ignore_errors=True)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    @property
    def _address(self) -> str:
        return f"/proc/self/fd/{self._descriptor}/{_SOCKET}"


def take(descriptor: int) -> bool:
    """Take the lock on an open file, and tell whether that worked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(descriptor: int) -> bool:
    """Tell whether no other process has, or shares, the lock on an open file."""
    free = take(descriptor)
    if free:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    return free


def is_own_peer(connection: socket.socket) -> bool:
    """Tell whether the other end of a Unix socket is a process of this user."""
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(user == os.getuid())
