"""Unix sockets: where their paths are too long for the kernel, and where no path is to be left."""

import os
import sys
import tempfile
from pathlib import Path

__all__ = ["HiddenSocket", "reachable"]

_PATH_BYTES = 107  # sockaddr_un.sun_path without its terminating zero, man 7 unix


def reachable(socket: Path) -> str:
    """Return a path for a socket that is short enough for one.

    The kernel takes 107 bytes, and Spark's local directories are deeper. On Linux a directory that this process has
    open is reached through ``/proc``, by this user alone, for as long as this process lives.
    """
    if len(os.fsencode(socket)) <= _PATH_BYTES or sys.platform != "linux":
        return str(socket)
    descriptor = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/{os.getpid()}/fd/{descriptor}/{socket.name}"


class HiddenSocket:
    """A socket that only this process can reach: it loses its name as soon as somebody listens on it.

    Attributes
    ----------
    path : str
        Where to listen.
    """

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="tfos-")  # which only this user can enter
        self._entry = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        self.path = f"/proc/self/fd/{self._entry}/hidden"  # a temporary directory's own path may be too long
        self._socket = -1

    def hide(self) -> str:
        """Take the name away, now that somebody listens; return the path by which this process still reaches it."""
        self._socket = os.open(self.path, os.O_PATH)
        Path(self.path).unlink()
        Path(self._directory).rmdir()
        return f"/proc/self/fd/{self._socket}"

    def close(self) -> None:
        """Let go of it."""
        os.close(self._socket)
        os.close(self._entry)
