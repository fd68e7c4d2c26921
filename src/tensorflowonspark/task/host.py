"""What an executor's environment says of the host that it is on."""

import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import pairwise

__all__ = ["LOCAL_DIRECTORIES", "given_address", "known_address", "local_directory"]

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
