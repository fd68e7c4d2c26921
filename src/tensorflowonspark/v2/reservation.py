"""Ending a stream from outside of its driver: all that programs of 2.x used of this module."""

import atexit
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tensorflowonspark import transport
from tensorflowonspark.errors import ClusterError
from tensorflowonspark.messages import StopRequested

from ._old import gone_names

if TYPE_CHECKING:
    from tensorflowonspark.driver.cluster import Cluster

__all__ = ["Client", "StopSwitch"]

_log = logging.getLogger(__name__)


class Client:
    """Somebody who asks the driver of a streaming cluster to stop.

    In 2.x whoever reached the driver's port could do that. Here it is the user whom the driver belongs to: its key is
    in a file that nobody else can read (``~/.tensorflowonspark``), as long as the cluster lives.

    Parameters
    ----------
    server_addr : (str, int)
        ``cluster.cluster_meta["server_addr"]``, which the driver also logs.

    Raises
    ------
    ClusterError
        If there is no key for that address.
    """

    def __init__(self, server_addr: tuple[str, int]) -> None:
        self.server_addr = (str(server_addr[0]), int(server_addr[1]))
        try:
            key = transport.Credentials.from_text(_key_file(self.server_addr).read_text())
        except OSError as error:
            raise ClusterError(
                f"no cluster of yours listens at {self.server_addr[0]}:{self.server_addr[1]} ({error.strerror}: "
                f"{error.filename}): call this as the user who runs the driver, where that user's home directory is "
                "the same, with the address that the driver logs"
            ) from error
        self._dialled = transport.connect(self.server_addr, key)

    def request_stop(self) -> None:
        """Ask for the stream's end: `TFCluster.shutdown` stops it when the rows that have come are through.

        Raises
        ------
        ClusterError
            If the driver does not answer.
        """
        try:
            channel = self._dialled.channel()
            channel.send(StopRequested())
            channel.receive()
            channel.close()
        except transport.ConnectionLost as error:
            raise ClusterError(f"the driver at {self.server_addr} does not answer: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._dialled.close()


class StopSwitch:
    """The driver's side of it: ``cluster.server``.

    Parameters
    ----------
    cluster : Cluster
        That runs.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._stopped = False
        self._owner = os.getpid()
        self._file: Path | None = None
        try:
            self._file = _key_file(cluster._address)
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            self._file.unlink(missing_ok=True)  # of a driver that was killed
            with os.fdopen(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(cluster._credentials.to_text())
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home, as in some containers
            _log.warning("the cluster can't be stopped from outside: %s", error)
        atexit.register(self.close)  # a driver may end without `TFCluster.shutdown`
        _log.info("a stream is stopped by tensorflowonspark.reservation.Client(%r).request_stop()", cluster._address)

    @property
    def done(self) -> bool:
        """Whether somebody asked for the end."""
        return self._stopped or self._cluster._stop_wanted

    def stop(self) -> None:
        """Ask for the end."""
        self._stopped = True

    def close(self) -> None:
        """Forget the key; a forked child leaves it to its parent."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)


def _key_file(address: tuple[str, int]) -> Path:
    host, port = address
    return Path.home() / ".tensorflowonspark" / f"{host.replace(':', '_')}-{port}"


__getattr__ = gone_names(__name__, "TFCluster.run")
