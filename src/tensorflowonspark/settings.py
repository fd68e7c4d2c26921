"""The settings of a cluster, as a user gives them: those that belong together are one object."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from tensorflowonspark.declarations import SECONDS, check_fields
from tensorflowonspark.errors import SpecError, did_you_mean
from tensorflowonspark.renamed import warn_renamed
from tensorflowonspark.restart_policy import RestartPolicy

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "GROUPS",
    "ClusterSettings",
    "Dashboard",
    "Logs",
    "Network",
    "Nodes",
    "SettingsGroup",
    "as_group",
    "check_seconds",
    "port_range",
    "with_groups",
]

_LAST_PORT = 65535  # of TCP


def check_seconds(name: str, seconds: float) -> float:
    """Return an argument that is a number of seconds; raise `SpecError` if it is not above 0."""
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise SpecError.of(name, seconds, ": expected seconds above 0")
    return float(seconds)


def _check_grace(name: str, seconds: object) -> None:
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise SpecError.of(name, seconds, ": expected 0 or more seconds")


def _check_notice(name: str, place: object) -> None:
    if place is None:
        return
    if not isinstance(place, str) or not place.startswith(("/", "http://", "https://")):
        raise SpecError.of(name, place, ": expected the absolute path of a file, or a URL that begins with http")


def _check_port(name: str, port: object) -> None:
    if port is None:
        return
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _LAST_PORT:
        raise SpecError.of(name, port, f": expected None or a port from 0 (any free one) to {_LAST_PORT}")


def port_range(ports: str | None = None, name: str = "ports") -> range:
    """Return the ports at which a process of this host may listen; 0 is any free one.

    They are given as ``"7000-7100"`` or ``"7000"``; by default by the variable ``TFOS_PORTS``, else any. Raises
    SpecError, which names the setting, if they have another form.

    Examples
    --------
    >>> port_range("7000-7100")
    range(7000, 7101)
    """
    if not ports:
        name, ports = "TFOS_PORTS", os.environ.get("TFOS_PORTS") or "0"
    low, _, high = ports.partition("-")
    try:
        found = range(int(low), int(high or low) + 1)
    except ValueError:
        found = range(0)
    if not found or found[0] < 0 or found[-1] > _LAST_PORT:
        raise SpecError.of(name, ports, ": expected a port, or the first and the last one, as '7000-7100'")
    return found


def _check_ports(name: str, ports: object) -> None:
    if ports is not None and (not isinstance(ports, str) or not ports):
        raise SpecError.of(name, ports, ": expected a text as '7000-7100', or None")
    port_range(ports)


def _check_gpus(name: str, gpus: object) -> None:
    if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1):
        raise SpecError.of(name, gpus, ": expected a whole number of GPUs from 1 on, or None")


def _check_directory(name: str, directory: object) -> None:
    if directory == "":
        raise SpecError.of(name, directory, ": expected a log directory, or None")


def _check_interface(name: str, wanted: object) -> None:
    """Raise `SpecError` if this is neither the name of a network interface, nor a pattern, nor a network."""
    if wanted is None:
        return
    reason = ""
    if not isinstance(wanted, str) or not wanted or any(each.isspace() or each == "," for each in wanted):
        reason = "one interface"
    elif "/" in wanted or wanted.replace(".", "").isdigit():
        try:
            ip_network(wanted, strict=False)
        except ValueError as error:
            reason = str(error)
    if reason:
        raise SpecError.of(
            name, wanted, f": expected a name as 'ib0', a pattern as 'ib*', or a network as '10.1.0.0/16' ({reason})"
        )


@dataclass(frozen=True, kw_only=True)
class SettingsGroup:
    """Settings that belong together, as one argument."""

    def __new__(cls, *_: Any, **given: Any) -> "Self":
        """Refuse a name that is none of a setting, with the one that was probably meant."""
        known = [each.name for each in fields(cls)]
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            guess = did_you_mean(unknown, known) or f": it has {', '.join(known)}"
            raise TypeError(f"{cls.__name__} has no setting {unknown!r}{guess}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def _of(cls, value: Any, name: str) -> "Self":
        if value is None:
            return cls()
        if not isinstance(value, cls):
            raise SpecError.of(name, value, f": expected {cls._expected()}")
        return value

    @classmethod
    def _expected(cls) -> str:
        return f"{cls.__name__}({', '.join(f'{each.name}=' for each in fields(cls))})"


@dataclass(frozen=True, kw_only=True)
class Logs(SettingsGroup):
    """What is shown and kept of what the nodes print, and of what happens to the cluster.

    Parameters
    ----------
    log_dir : str, optional
        A directory in which each node's output from `log_level` on is also written, as in ``worker-1.log``, and what
        happens to the cluster in ``driver.log``: a path of the driver's machine, or a URL of any file system. The last
        50 MiB of each node are kept.
    log_level : str or int
        The logging level below which lines of the nodes' output are not sent to the driver.
    log_format : {"text", "json"}
        The form of the nodes' lines in the console and in `log_dir`: as they were printed, or an object of JSON in each
        line, with time, node, host, level and message; epochs, failures and restarts are such objects too.
    show : str
        The node all of whose lines are shown: ``"chief"``, one by its name, as ``"worker:1"``, ``"all"`` or ``"none"``.
        Of other nodes, warnings and errors are shown, each distinct one once. Epochs, failures and restarts are always
        shown. See docs/logs.md.

    Raises
    ------
    SpecError
        If a setting can't be right; the error names it and its value.

    Examples
    --------
    >>> Logs(log_dir="hdfs:///logs", show="all").log_format
    'text'
    """

    log_dir: str | None = None
    log_level: str | int = "INFO"
    log_format: Literal["text", "json"] = "text"
    show: str = "chief"

    @classmethod
    def _of(cls, value: Any, name: str) -> "Self":
        return cls(log_dir=os.fspath(value)) if isinstance(value, (str, os.PathLike)) else super()._of(value, name)

    @classmethod
    def _expected(cls) -> str:
        return f"a directory, or {super()._expected()}"


@dataclass(frozen=True, kw_only=True)
class Dashboard(SettingsGroup):
    """The page that shows the training, its metrics for Prometheus and MLflow, and the report.

    Parameters
    ----------
    page_port : int, optional
        The port of the page, which the driver serves; 0 takes any free one. By default there is no page.
    metrics_port : int, optional
        The port at which the driver serves the metrics in Prometheus's text format (`Cluster.metrics_url`); 0 takes any
        free one. Needs the extra ``prometheus``.
    tracking : {"auto", "none"}
        Whether parameters, metrics and the report are logged to MLflow if a run is active in this process ("auto").
    report : str or path, optional
        The file of a report, which is written at the end, also after a failure: a local path or a URL, as for
        `Cluster.save_report`.

    Raises
    ------
    SpecError
        If a setting can't be right; the error names it and its value.

    Examples
    --------
    >>> Dashboard(page_port=8080, report="report.html").metrics_port is None
    True
    """

    page_port: Annotated[int | None, _check_port] = None
    metrics_port: Annotated[int | None, _check_port] = None
    tracking: Literal["auto", "none"] = "auto"
    report: str | os.PathLike[str] | None = None

    @classmethod
    def _of(cls, value: Any, name: str) -> "Self":
        if value is None or isinstance(value, bool):
            return cls(page_port=0 if value else None)
        if isinstance(value, int):
            _check_port(name, value)
            return cls(page_port=value)
        return super()._of(value, name)

    @classmethod
    def _expected(cls) -> str:
        return f"True, False, a port, or {super()._expected()}"


@dataclass(frozen=True, kw_only=True)
class Network(SettingsGroup):
    """Where the processes of a cluster listen, and whether what they send is encrypted.

    Parameters
    ----------
    network_interface : str, optional
        The network interface of each executor at which its nodes listen and reach each other: its name (``"ib0"``), a
        pattern (``"ib*"``), or a network that contains its address (``"10.1.0.0/16"``). Also for NCCL and gloo. By
        default the address under which Spark knows the executor. See docs/network.md.
    ports : str, optional
        The ports at which the driver and the nodes listen, TensorFlow's among them, as ``"7000-7100"``, where a
        firewall has others closed. By default the variable ``TFOS_PORTS`` of each executor and of the driver, or any.
        See docs/network.md.
    tls : bool, optional
        Whether what driver, tasks and nodes send to other hosts is encrypted; by default as Spark's settings ask. What
        TensorFlow sends is not encrypted: see docs/security.md.

    Raises
    ------
    SpecError
        If a setting can't be right; the error names it and its value.

    Examples
    --------
    >>> Network(network_interface="10.1.0.0/16", ports="7000-7100").tls is None
    True
    """

    network_interface: Annotated[str | None, _check_interface] = None
    ports: Annotated[str | None, _check_ports] = None
    tls: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Nodes(SettingsGroup):
    """How the processes of the nodes are started, watched and ended.

    Parameters
    ----------
    gpus_per_node : int, optional
        The number of GPUs that Spark assigns to each node (`Context.gpus`), for these tasks alone: other tasks of the
        application keep their slots. By default nodes have the GPUs that Spark assigns to every task, or else the free
        ones of their host. See docs/gpus.md.
    warm_nodes : bool
        Whether executors keep a process that has imported TensorFlow, or Keras with JAX, once a node has, from which
        later nodes are forked: in about a second instead of the seconds that the import takes. It uses about 300 MB
        of memory, and ends with the application, or ten minutes after its last cluster. Where forking is not safe, as
        with GPUs, and for nodes whose `env` or modules differ, nodes start without it.
    ps_on_driver : bool
        Whether the parameter servers run on the driver's machine, and take no slots.
    breakpoints : bool
        Whether ``breakpoint()`` in a node waits for pdb in a terminal, which ``tfos attach`` connects on the driver's
        host. Whoever can do that runs code in the node; only the driver's user can. See docs/recipes.md.
    hold : bool, optional
        Whether each node keeps its Spark task's slot for as long as it runs: for programs that read their data
        themselves. `Cluster.train` needs the slots for the tasks that feed. By default the nodes of a `Cluster` do
        not; those of `run` do, unless a job feeds them.
    heartbeat_timeout : float
        Seconds without a sign of progress after which a node is given up: its process is stopped, its host is
        unreachable, or the training hangs. A node that uses the processor, or waits for rows or files, does not hang.
    start_timeout : float
        Seconds to wait for executors that the cluster manager was asked for, at the start and at each restart, and
        then as many seconds for the nodes to come up.
    grace : float
        Seconds that nodes have to end after SIGTERM, before they are killed, if the program that started them raises
        or is interrupted. (At the end of a ``with`` block that does not, they have two.)
    notice : str, optional
        A file on the nodes' hosts, or a URL with http that they can reach, which is there once a host goes: as clouds
        give notice of it. All workers save then, and a restart goes on without the host. See docs/failures.md.
    grow_after : float
        Where `num_workers` is a range: seconds for which slots for more workers have been free, until all workers save
        and a restart takes these in. See docs/failures.md.

    Raises
    ------
    SpecError
        If a setting can't be right; the error names it and its value.

    Examples
    --------
    >>> Nodes(gpus_per_node=2, heartbeat_timeout=60).grace
    30.0
    """

    gpus_per_node: Annotated[int | None, _check_gpus] = None
    warm_nodes: bool = True
    ps_on_driver: bool = False
    breakpoints: bool = False
    hold: bool | None = None
    heartbeat_timeout: Annotated[float, SECONDS, check_seconds] = 30.0
    start_timeout: Annotated[float, SECONDS] = 600.0
    grace: Annotated[float, SECONDS, _check_grace] = 30.0
    notice: Annotated[str | None, _check_notice] = None
    grow_after: Annotated[float, SECONDS, check_seconds] = 60.0


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The settings of a cluster: keywords of `Cluster` and `run`; those of ``tfos run`` are options, each on its own.

    Each is a field here or in the object that it belongs to, with its type and default, and in ``Annotated`` its unit
    and its check; its text is its entry below. After a change run ``make keywords``.

    Parameters
    ----------
    num_workers : int or (int, int)
        The number of workers, or the fewest and the most. With ``(2, 8)`` the cluster has as many workers as there are
        slots for when it starts, and again at each restart. `batch_size` is the total over all workers, so it does not
        depend on their number.
    num_ps : int
        The number of parameter servers.
    chief : bool
        Whether one more node has the job ``chief``; else worker 0 has the chief's duties.
    evaluator : bool
        Whether one more node evaluates beside the training (`Context.evaluate_checkpoints`).
    env : mapping of str to str, optional
        Environment variables of the nodes, set before anything is imported there (as ``KERAS_BACKEND``). Variables of
        this process that begin with ``NCCL_`` or ``GRPC_`` are passed on, too; `env` wins.
    restarts : RestartPolicy or int
        How often the nodes are started again when one has failed. A number is that of a `RestartPolicy` with its other
        defaults; the policy has the failures after which they are. What `train` has fed since the last checkpoint is
        fed again. With ``RestartPolicy(scope="node")`` only the node that has failed is started again, and gets its
        rows again.
    tensorboard : str, optional
        A log directory, on any file system (`Context.tensorboard_directory`). TensorBoard runs beside the chief as long
        as the cluster does.
    logs : str, path or Logs, optional
        A directory for the nodes' output, or what of it is shown and kept, and how (`Logs`).
    dashboard : bool, int or Dashboard
        Whether the driver serves a page that shows the training (`Cluster.dashboard_url`), or the port of that page; or
        the page, the metrics for Prometheus and MLflow, and the report (`Dashboard`). See docs/dashboard.md.
    network : Network, optional
        The network interface and the ports of the cluster's processes, and encryption (`Network`).
    nodes : Nodes, optional
        The nodes' GPUs, time limits and processes (`Nodes`).

    Raises
    ------
    SpecError
        If a setting can't be right; the error names it and its value.
    """

    num_workers: int | tuple[int, int] = 1
    num_ps: int = 0
    chief: bool = False
    evaluator: bool = False
    env: Mapping[str, str] | None = None
    restarts: RestartPolicy | int = 0
    tensorboard: Annotated[str | None, _check_directory] = None
    logs: str | os.PathLike[str] | Logs | None = None
    dashboard: bool | int | Dashboard = False
    network: Network | None = None
    nodes: Nodes | None = None

    def __post_init__(self) -> None:
        check_fields(self)


Group = TypeVar("Group", bound=SettingsGroup)
GROUPS: dict[str, type[SettingsGroup]] = {"logs": Logs, "dashboard": Dashboard, "network": Network, "nodes": Nodes}


def as_group(kind: type[Group], value: Any, name: str) -> Group:
    """Return an argument as an object of settings: itself, the defaults for None, or what its short form stands for.

    Raises SpecError, which names the argument, if it is none of these.

    Examples
    --------
    >>> as_group(Logs, "/logs", "logs").log_dir, as_group(Dashboard, 8080, "dashboard").page_port
    ('/logs', 8080)
    """
    return kind._of(value, name)


def with_groups(
    given: Mapping[str, Any], groups: Mapping[str, type[SettingsGroup]] = GROUPS, *, warn: bool = False
) -> dict[str, Any]:
    """Return settings in which those that belong to an object, and were given by themselves, are part of it.

    Parameters
    ----------
    given : mapping
        The settings.
    groups : mapping
        The class of each keyword that takes an object of settings.
    warn : bool
        Whether each that was given by itself warns: as keywords of a call these are names from before 3.0.

    Raises
    ------
    SpecError
        If a setting is given by itself beside the object that it belongs to.

    Examples
    --------
    >>> with_groups({"num_workers": 2, "log_dir": "/logs"})["logs"].log_dir
    '/logs'
    """
    found = dict(given)
    for group, kind in groups.items():
        names = [each.name for each in fields(kind) if each.kw_only and each.name in found]
        former = {name: found.pop(name) for name in names}
        for name, value in former.items():
            if warn:
                first = "".join(f"{each.name}, " for each in fields(kind) if not each.kw_only)
                shown = repr(value) if isinstance(value, (str, int, float, type(None))) else "..."
                warn_renamed(f"{name}=", f"{group}={kind.__name__}({first}{name}={shown})")
            if isinstance(given.get(group), kind):
                raise SpecError.of(
                    name, value, f" is given beside {group}={kind.__name__}(...), which has it: set it there"
                )
        if former:
            found[group] = replace(as_group(kind, found.get(group), group), **former)
    return found
