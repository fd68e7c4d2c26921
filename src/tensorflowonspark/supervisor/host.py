"""The executor's host: its address, its local directories, and reserved ports."""

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from itertools import pairwise

import psutil

from tensorflowonspark.settings import port_range

LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"


def configured_address() -> str:
    """Return the address of a Kubernetes pod, or the one that is configured for Spark, or "".

    Wildcard addresses are ignored. Spark wants one of IPv6 in brackets, which are none of the address.
    """
    for name in ("SPARK_EXECUTOR_POD_IP", "SPARK_LOCAL_IP"):
        address = os.environ.get(name, "").strip("[]")
        if address.strip("0.:"):
            return address
    return ""


def executor_id(jvm_pid: int) -> str:
    """Return Spark's id of the executor whose JVM this is; "" for that of a driver, or one that has ended."""
    with suppress(psutil.Error):
        command = psutil.Process(jvm_pid).cmdline()
        return next((value for option, value in pairwise(command) if option == "--executor-id"), "")
    return ""


def advertised_address(command: Sequence[str]) -> str:
    """Return the address in an executor's command line, at which Spark's other executors reach it, or "".

    A name that resolves to a loopback address on its own host, as on Debian, is ignored.

    Examples
    --------
    >>> advertised_address(["java", "CoarseGrainedExecutorBackend", "--hostname", "10.0.0.7", "--cores", "1"])
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


@dataclass(frozen=True)
class Interface:
    """A network interface of this host, with the address at which other hosts reach its nodes."""

    name: str
    address: str

    @property
    def device(self) -> str:
        """The name without a label, as ``eth0`` of ``eth0:1``, which is another address of that interface."""
        return self.name.partition(":")[0]


def address_problem(address: str) -> str:
    """Return why no process of this host can listen at an address, with the addresses that it has; or "".

    Examples
    --------
    >>> address_problem("127.0.0.1")
    ''
    """
    try:
        for family, *_, place in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family) as probe:
                probe.bind(place)
                return ""
        reason = "this host does not have that address"
    except OSError as error:
        reason = f"this host knows no address of that name: {error.strerror or error}"
    return f"{reason}; it has {', '.join(f'{each.name} {each.address}' for each in _interfaces())}"


def find_interface(wanted: str) -> Interface:
    """Return the first interface of this host that is up, has an address, and is the wanted one.

    Addresses of IPv4 come before those of IPv6, and those that are valid on one link alone are none.

    It is wanted by its name, a pattern of names as ``ib*``, or a network that contains its address, as ``10.1.0.0/16``.
    If there is none, it raises `LookupError`, which names those that exist.

    Examples
    --------
    >>> find_interface("lo")
    Interface(name='lo', address='127.0.0.1')
    """
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = _interfaces()
    for each in found:
        if each.device in up and _is_wanted(each, wanted):
            return each
    names = [f"{each.name} ({each.address}{'' if each.device in up else ', down'})" for each in found]
    names += [f"{name} (no address)" for name in up - {each.device for each in found}]
    raise LookupError(
        f"network_interface={wanted!r}: no interface of this host matches that is up and has an address; it has "
        f"{', '.join(names) or 'none'}. A pattern ('ib*') or a network ('10.1.0.0/16') can match other names"
    )


def _interfaces() -> list[Interface]:
    """Return the addresses of this host that others may reach, those of IPv4 first."""
    return [
        Interface(name, each.address)
        for family in (socket.AF_INET, socket.AF_INET6)
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == family and not each.address.startswith("fe80:")
    ]


def _is_wanted(interface: Interface, wanted: str) -> bool:
    try:
        network = ip_network(wanted, strict=False)
    except ValueError:
        return fnmatchcase(interface.name, wanted)
    return ip_address(interface.address) in network


def local_directory() -> str:
    """Return the directory for temporary files: Spark's on an executor, a private one in a node."""
    return os.environ.get(LOCAL_DIRECTORIES, "").split(",")[0]


def reserve_port(wanted: int = 0, ports: str | None = None) -> socket.socket:
    """Return a bound socket whose port no other user, and no search for a free port, can take.

    The socket does not listen. TensorFlow's server binds the same port beside it, since both ask for
    ``SO_REUSEPORT`` (TensorFlow does with ``TF_GRPC_REUSE_PORT=1``, which the node's environment sets) and belong to
    one user; connections go to the one that listens. The socket must stay open until the node ends.

    The wanted port is by default ``TENSORFLOW_PORT``, or else a free one of the ports, in the form of `port_range`. If
    the wanted one is in use, for example by another node of this host, or no port is free, it raises `OSError`; if the
    variable ``TFOS_PORTS`` is no range of ports, `SpecError`.

    Examples
    --------
    >>> with reserve_port() as reservation:
    ...     reservation.getsockname()[1] > 0
    True
    """
    wanted = wanted or int(os.environ.get("TENSORFLOW_PORT") or 0)
    if wanted:
        with socket.socket() as alone:  # two nodes of one user would share the port without an error
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(("", wanted))
        return hold_port(wanted)
    allowed = port_range(ports)
    for port in allowed:
        with suppress(OSError):
            return hold_port(port) if not port else _hold_alone(port)
    raise OSError(errno.EADDRINUSE, f"no port of {allowed[0]} to {allowed[-1]} is free (ports)")


def _hold_alone(port: int) -> socket.socket:
    """Return what `hold_port` does, if no other socket of this user holds the port already."""
    holder = socket.socket()
    try:
        holder.bind(("", port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        holder.close()
        raise
    return holder


def hold_port(port: int) -> socket.socket:
    """Return a socket bound to a port (0: a free one), which other sockets of this user may share."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("", port))
    return holder
