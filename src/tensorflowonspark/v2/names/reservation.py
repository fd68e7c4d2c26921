"""Requests from outside the driver to stop a stream: the part of this module that programs of 2.x used.

A driver that can be stopped holds a locked file in the user's home directory; a request is written into it.
"""

import atexit
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from tensorflowonspark.errors import ClusterError
from tensorflowonspark.v2.deprecation import removed_names

__all__ = ["Client", "StopSwitch"]

_log = logging.getLogger(__name__)
_REQUEST = b"stop\n"


class Client:
    """A client that asks the driver of a streaming cluster to stop.

    In 2.x any process that reached the driver's port could do so. Here only the user who runs the driver can: the
    request goes through a file in that user's home directory (``~/.tensorflowonspark``), which exists until
    `TFCluster.shutdown`.

    Parameters
    ----------
    server_addr : (str, int)
        ``cluster.cluster_meta["server_addr"]``, which the driver also logs.

    Raises
    ------
    ClusterError
        If no driver of this user has that address.
    """

    def __init__(self, server_addr: tuple[str, int]) -> None:
        self.server_addr = (str(server_addr[0]), int(server_addr[1]))
        path = _request_file(self.server_addr)
        try:
            self._file = path.open("r+b", buffering=0)
        except OSError as error:
            raise ClusterError(
                f"no cluster of yours listens at {self.server_addr[0]}:{self.server_addr[1]} ({error.strerror}: "
                f"{error.filename}): call this as the user who runs the driver, where that user's home directory is "
                "the same, with the address that the driver logs"
            ) from error

    def request_stop(self) -> None:
        """Ask for the end of the stream: `TFCluster.shutdown` stops it when the rows received so far are processed.

        Raises
        ------
        ClusterError
            If the driver has ended.
        """
        with suppress(OSError):  # the driver holds the lock, or the file system has no locks
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            raise ClusterError(f"the driver at {self.server_addr} does not answer: its cluster has ended")
        self._file.write(_REQUEST)

    def close(self) -> None:
        """Close the client."""
        self._file.close()


class StopSwitch:
    """The driver's side: ``cluster.server``.

    Parameters
    ----------
    address : (str, int)
        The driver's address, for which clients ask.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._stopped = False
        self._owner = os.getpid()
        self._lock: int | None = None
        self._path: Path | None = None
        try:
            path = _request_file(address)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)  # left by a driver that was killed
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self._path = path
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_EX)
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home, as in some containers
            _log.warning("the cluster can't be stopped from outside: %s", error)
        atexit.register(self.close)  # a driver may end without `TFCluster.shutdown`
        _log.info("a stream is stopped by tensorflowonspark.reservation.Client(%r).request_stop()", address)

    @property
    def done(self) -> bool:
        """Whether a stop was requested."""
        if self._path is not None and not self._stopped:
            with suppress(OSError):
                self._stopped = self._path.read_bytes().startswith(_REQUEST)
        return self._stopped

    def stop(self) -> None:
        """Request a stop."""
        self._stopped = True

    def close(self) -> None:
        """Remove the file; a forked child leaves it to its parent."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        if self._path is not None:
            self._stopped = self.done  # for the last time from the file
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._path = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _request_file(address: tuple[str, int]) -> Path:
    host, port = address
    return Path.home() / ".tensorflowonspark" / f"{host.replace(':', '_')}-{port}"


__getattr__ = removed_names(__name__, "TFCluster.run")
