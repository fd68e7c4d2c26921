"""What the two kinds of driver in a Spark task share: what they know of Spark, and how they return large results."""

from collections.abc import Iterator

from tensorflowonspark.driver.spark.backend import Backend

_PIECE_BYTES = 1 << 20  # in a row: Spark Connect bounds its messages


class TaskBackend(Backend):
    """The backend of a driver on an executor's host; it knows no slots, and not why an executor has ended.

    `hadoop` has the client's settings of file systems; `tls` is whether Spark's settings ask for encrypted connections.
    """

    def __init__(self, host: str, hadoop: dict[str, str], tls: bool) -> None:
        self._host = host
        self._hadoop = hadoop
        self._tls = tls

    def hadoop_settings(self) -> dict[str, str]:
        """Return the settings by which the nodes reach file systems."""
        return self._hadoop

    def wants_tls(self) -> bool:
        """Whether Spark's settings ask for encrypted connections."""
        return self._tls

    def driver_host(self) -> tuple[str, str]:
        """Return this executor's address."""
        return self._host, self._host


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield bytes in pieces of which each fits into a row.

    Examples
    --------
    >>> [len(piece) for piece in pieces(bytes(_PIECE_BYTES + 1))]
    [1048576, 1]
    """
    return (data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))
