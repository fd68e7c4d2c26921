"""A port that stays ours between its reservation and its use."""

import os
import socket

__all__ = ["hold_port", "reserve_port"]


def reserve_port() -> socket.socket:
    """Return a bound socket whose port no other user's process, and no search for a free port, can take.

    The socket does not listen. TensorFlow's server binds the same port beside it, since both ask for
    ``SO_REUSEPORT`` (TensorFlow does with ``TF_GRPC_REUSE_PORT=1``, which the node's environment sets) and belong to
    one user; connections go to the one that listens. Keep the socket for as long as the node lives.

    The port is free, or the one in ``TENSORFLOW_PORT``.

    Raises
    ------
    OSError
        If that one is taken, as by another node of this host.

    Examples
    --------
    >>> with reserve_port() as reservation:
    ...     reservation.getsockname()[1] > 0
    True
    """
    wanted = int(os.environ.get("TENSORFLOW_PORT") or 0)
    if wanted:
        with socket.socket() as alone:  # two nodes of one user could share the port without a word
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(("", wanted))
    return hold_port(wanted)


def hold_port(port: int) -> socket.socket:
    """Return a socket bound to a port, or to a free one if it is 0, beside others of this user that hold it so."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("", port))
    return holder
