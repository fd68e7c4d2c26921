"""The executor's host: its address, its local directories, and ports that stay reserved until they are used."""

import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import pairwise

__all__ = ["LOCAL_DIRECTORIES", "given_address", "hold_port", "known_address", "local_directory", "reserve_port"]

LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"


def given_address() -> str:
    """Return the address of a Kubernetes pod, or the one that the host's administrator gave to Spark, if any.

    One that means all addresses is none.
    """
    for name in ("SPARK_EXECUTOR_POD_IP", "SPARK_LOCAL_IP"):
        given = os.environ.get(name, "")
        if given.strip("0.:"):
            return given
    return ""


def known_address(command: Sequence[str]) -> str:
    """Return the address of the host that Spark has given to an executor, in its command line, if any.

    Other executors reach it there. A name that stands for a loopback address on its own host, as Debian has it, is
    none.

    Examples
    --------
    >>> known_address(["java", "CoarseGrainedExecutorBackend", "--hostname", "10.0.0.7", "--cores", "1"])
    '10.0.0.7'
    """
    name = next((value for option, value in pairwise(command) if option == "--hostname"), "").strip("[]")
    try:
        ip_address(name)
    except ValueError:
        pass
    else:
        return name
    try:
        found = [str(place[0]) for *_, place in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)] if name else []
    except OSError:
        return ""
    return next((address for address in found if not ip_address(address.partition("%")[0]).is_loopback), "")


def local_directory() -> str:
    """Return where temporary files belong: on an executor Spark's own, which goes with it; in a node one of its own."""
    return os.environ.get(LOCAL_DIRECTORIES, "").split(",")[0]


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
