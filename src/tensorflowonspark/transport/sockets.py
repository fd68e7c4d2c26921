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

    Parameters
    ----------
    directory : str
        Where it has a name until then; one that goes with this process, if there is any. By default the system's own.

    Attributes
    ----------
    path : str
        Where to listen.
    """

    def __init__(self, directory: str = "") -> None:
        self._directory = tempfile.mkdtemp(prefix="tfos-", dir=directory or None)  # which only this user can enter
        self._entry = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        self.path = f"/proc/self/fd/{self._entry}/hidden"  # a temporary directory's own path may be too long
        self._socket = -1

    def hide(self) -> str:
        """Take the name away, now that somebody listens; return the path by which this process still reaches it."""
        self._socket = os.open(self.path, os.O_PATH)
        self._remove()
        return f"/proc/self/fd/{self._socket}"

    def close(self) -> None:
        """Let go of it."""
        if self._socket < 0:
            self._remove()  # nobody has listened
        else:
            os.close(self._socket)
        os.close(self._entry)

    def _remove(self) -> None:
        Path(self.path).unlink(missing_ok=True)
        Path(self._directory).rmdir()
