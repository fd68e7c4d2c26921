"""Configuration of a cluster: its roles, restart policy and other settings, and each node's ``TF_CONFIG``."""

import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from tensorflowonspark.declarations import SECONDS, check_fields
from tensorflowonspark.errors import FailureKind, SpecError

__all__ = [
    "HEARTBEATS_PER_TIMEOUT",
    "ClusterConfig",
    "ClusterSettings",
    "ClusterSpec",
    "Job",
    "RestartPolicy",
    "Role",
    "check_seconds",
    "port_range",
    "tf_config",
]

_LAST_PORT = 65535
HEARTBEATS_PER_TIMEOUT = 12  # sent by a supervisor within `ClusterConfig.heartbeat_timeout`


class Job(str, Enum):
    """The job of a node in the cluster, by TensorFlow's names."""

    PS = "ps"
    CHIEF = "chief"
    EVALUATOR = "evaluator"
    WORKER = "worker"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, order=True)
class Role:
    """The role of a node in the cluster: its job and its index within the job.

    Attributes
    ----------
    job : Job
        The job.
    index : int
        The number within the job, from 0.

    Examples
    --------
    >>> str(Role(Job.WORKER, 1))
    'worker:1'
    """

    job: Job
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


@dataclass(frozen=True)
class ClusterSpec:
    """The numbers of nodes of each job of a cluster.

    Parameters
    ----------
    num_workers : int
        Nodes that train, not counting the chief.
    num_ps : int
        Parameter servers.
    chief : bool
        Whether there is a node of the job ``chief``. Without one, worker 0 has the chief's duties, as in
        ``MultiWorkerMirroredStrategy``; ``ParameterServerStrategy`` requires one.
    evaluator : bool
        Whether one more node evaluates during the training.

    Raises
    ------
    SpecError
        If a count is negative or not an integer, or no node would train.

    Examples
    --------
    >>> [str(role) for role in ClusterSpec(num_workers=2, num_ps=1, chief=True).roles]
    ['ps:0', 'chief:0', 'worker:0', 'worker:1']
    """

    num_workers: int = 1
    num_ps: int = 0
    chief: bool = False
    evaluator: bool = False

    def __post_init__(self) -> None:
        for name in ("num_workers", "num_ps"):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool):
                raise SpecError(f"{name}={count!r}: expected a whole number of nodes, not {type(count).__name__}")
            if count < 0:
                raise SpecError(f"{name}={count}: expected 0 or more nodes")
        for name in ("chief", "evaluator"):
            if not isinstance(getattr(self, name), bool):
                raise SpecError(f"{name}={getattr(self, name)!r}: expected True or False; a cluster has at most one")
        if not self.num_workers and not self.chief:
            raise SpecError(
                "num_workers=0 without a chief: no node would train; ask for at least one worker or chief=True"
            )

    @property
    def roles(self) -> tuple[Role, ...]:
        """All roles, ordered by node number: ps, chief, evaluator, workers."""
        counts = {Job.PS: self.num_ps, Job.CHIEF: int(self.chief), Job.EVALUATOR: int(self.evaluator)}
        counts[Job.WORKER] = self.num_workers
        return tuple(Role(job, index) for job, count in counts.items() for index in range(count))

    @property
    def trainers(self) -> tuple[Role, ...]:
        """The roles that train: the chief, if there is one, then the workers."""
        return tuple(role for role in self.roles if role.job in (Job.CHIEF, Job.WORKER))

    @property
    def chief_role(self) -> Role:
        """The role with the chief's duties: the chief, or else worker 0."""
        return self.trainers[0]

    @property
    def fed(self) -> tuple[Role, ...]:
        """The roles that are fed: the workers, and without parameter servers the chief."""
        if self.num_ps:
            return tuple(role for role in self.trainers if role.job is Job.WORKER)
        return self.trainers

    def __str__(self) -> str:
        counts = [(self.num_ps, "ps"), (int(self.chief), "chief"), (int(self.evaluator), "evaluator")]
        parts = [name if count == 1 else f"{count} {name}" for count, name in counts if count]
        if self.num_workers:
            parts.append("1 worker" if self.num_workers == 1 else f"{self.num_workers} workers")
        return ", ".join(parts)


def tf_config(addresses: Mapping[Role, str], role: Role) -> str:
    """Return the ``TF_CONFIG`` of a node, as JSON.

    The evaluator is not a part of TensorFlow's cluster: the ``TF_CONFIG`` of the other nodes does not contain it.

    Parameters
    ----------
    addresses : mapping of Role to str
        ``host:port`` of every node's TensorFlow server.
    role : Role
        The role of the node.

    References
    ----------
    https://www.tensorflow.org/guide/distributed_training#TF_CONFIG

    Examples
    --------
    >>> tf_config({Role(Job.WORKER, 0): "a:1", Role(Job.WORKER, 1): "b:2"}, Role(Job.WORKER, 1))
    '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'
    """
    cluster: dict[str, list[str]] = {}
    for member in sorted(addresses, key=lambda r: (str(r.job), r.index)):
        if (member.job is Job.EVALUATOR) <= (role.job is Job.EVALUATOR):
            cluster.setdefault(str(member.job), []).append(addresses[member])
    config: dict[str, Any] = {"cluster": cluster, "task": {"type": str(role.job), "index": role.index}}
    return json.dumps(config)


_PREEMPTIONS = 10  # for each restart after another failure
_CAUSES = tuple(kind.name.lower() for kind in FailureKind)


@dataclass(frozen=True)
class RestartPolicy:
    """The failures after which a cluster is restarted, the number of restarts, and the delays before them.

    A restart starts all nodes again, on the executors of that time, and runs the function from its beginning: the
    function resumes from its last checkpoint (`Context.checkpoint`), and `Context.attempt` is its number.

    Parameters
    ----------
    max_restarts : int
        Maximum number of restarts of the cluster; with ``scope="node"``, of each node. Those after preemptions are not
        among them.
    backoff : float
        Seconds before the second restart, doubled for each later one. The first restart is immediate.
    max_backoff : float
        Maximum of these seconds.
    causes : collection of str
        The failures after which the cluster is restarted, by the ``cause`` of `NodeError`; others end it. By default
        all but ``"raised"``, since a program would most likely raise its own exception again.
    scope : {"cluster", "node"}
        What is started again: all nodes, or only the node that has failed, while the others continue. The latter is
        for programs whose nodes do not take their steps together. `Context.attempt` is then the number of restarts of
        that node, which gets the rows of its share of the current feed again. With parameter servers this concerns
        workers that serve (`Context.join_server`), on their first host and port; any other node's failure restarts
        all. Not over Spark Connect.
    max_preemptions : int, optional
        Maximum number of restarts, without delay, after losses of executors that Spark has decommissioned or the
        cluster manager has taken; further ones count as `max_restarts`. By default ten times `max_restarts`.

    Raises
    ------
    SpecError
        If a number is negative, or a cause or the scope is unknown.

    Examples
    --------
    >>> policy = RestartPolicy(max_restarts=5, backoff=2, max_backoff=5)
    >>> [policy.delay(restart) for restart in range(5)]
    [0.0, 2.0, 4.0, 5.0, 5.0]
    >>> RestartPolicy(scope="worker")
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: scope='worker': expected 'cluster' or 'node'
    """

    max_restarts: int = 3
    backoff: float = 1.0
    max_backoff: float = 60.0
    causes: Collection[str] = tuple(cause for cause in _CAUSES if cause != "raised")
    scope: Literal["cluster", "node"] = "cluster"
    max_preemptions: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_restarts", "max_preemptions"):
            number = getattr(self, name)
            if number is None and name == "max_preemptions":
                continue
            if not isinstance(number, int) or isinstance(number, bool):
                raise SpecError(f"{name}={number!r}: expected a whole number")
        for name in ("max_restarts", "max_preemptions", "backoff", "max_backoff"):
            if (getattr(self, name) or 0) < 0:
                raise SpecError(f"{name}={getattr(self, name)!r}: expected 0 or more")
        unknown = [self.causes] if isinstance(self.causes, str) else sorted(set(self.causes) - set(_CAUSES))
        if unknown:
            raise SpecError(f"causes: {unknown[0]!r} is unknown; expected some of {', '.join(_CAUSES)}")
        check_fields(self)

    @property
    def most_preemptions(self) -> int:
        """The maximum number of restarts after preemptions."""
        return _PREEMPTIONS * self.max_restarts if self.max_preemptions is None else self.max_preemptions

    def delay(self, restart: int) -> float:
        """Return the seconds to wait before restart number `restart`, counted from 0.

        Parameters
        ----------
        restart : int
            The number of the restart.

        Returns
        -------
        float
            In seconds; 0 for the first restart.

        Examples
        --------
        >>> [RestartPolicy(backoff=5.0).delay(restart) for restart in range(4)]
        [0.0, 5.0, 10.0, 20.0]
        """
        return float(min(self.max_backoff, self.backoff * 2 ** (restart - 1))) if restart else 0.0


def check_seconds(name: str, seconds: float) -> float:
    """Return an argument that is a number of seconds; raise `SpecError` if it is not above 0."""
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise SpecError(f"{name}={seconds!r}: expected seconds above 0")
    return float(seconds)


def _check_grace(name: str, seconds: object) -> None:
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise SpecError(f"{name}={seconds!r}: expected 0 or more seconds")


def _check_port(name: str, port: object) -> None:
    if port is None or (name == "dashboard" and isinstance(port, bool)):
        return
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _LAST_PORT:
        expected = "True, False or a port" if name == "dashboard" else "None or a port"
        raise SpecError(f"{name}={port!r}: expected {expected} from 0 (any free one) to {_LAST_PORT}")


def port_range(ports: str | None = None, name: str = "ports") -> range:
    """Return the ports at which a process of this host may listen; 0 is any free one.

    Parameters
    ----------
    ports : str, optional
        As ``"7000-7100"`` or ``"7000"``; by default the variable ``TFOS_PORTS``, or any.
    name : str
        The setting, for the error.

    Raises
    ------
    SpecError
        If it has another form.

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
        raise SpecError(f"{name}={ports!r}: expected a port, or the first and the last one, as '7000-7100'")
    return found


def _check_ports(name: str, ports: object) -> None:
    if ports is not None and (not isinstance(ports, str) or not ports):
        raise SpecError(f"{name}={ports!r}: expected a text as '7000-7100', or None")
    port_range(ports)


def _check_gpus(name: str, gpus: object) -> None:
    if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1):
        raise SpecError(f"{name}={gpus!r}: expected a whole number of GPUs from 1 on, or None")


def _check_directory(name: str, directory: object) -> None:
    if directory == "":
        raise SpecError(f"{name}='': expected a log directory, or None")


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
        raise SpecError(
            f"{name}={wanted!r}: expected a name as 'ib0', a pattern as 'ib*', or a network as '10.1.0.0/16' ({reason})"
        )


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The settings of a cluster, as a user gives them: keywords of `Cluster` and `run`, and options of ``tfos run``.

    Each is a field here with its type and default, and in ``Annotated`` its unit and its check; its text is its entry
    below. After a change run ``make keywords``.

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
        Whether one more node evaluates beside the training.
    tensorboard : str, optional
        A log directory, on any file system (`Context.tensorboard_directory`). TensorBoard runs beside the chief as long
        as the cluster does.
    env : mapping of str to str, optional
        Environment variables of the nodes, set before anything is imported there (as ``KERAS_BACKEND``). Variables of
        this process that begin with ``NCCL_`` or ``GRPC_`` are passed on, too; `env` wins.
    log_level : str or int
        The logging level below which lines of the nodes' output are not sent to the driver.
    heartbeat_timeout : float
        Seconds without a sign of progress after which a node is given up: its process is stopped, its host is
        unreachable, or the training hangs. A node that uses the processor, or waits for rows or files, does not hang.
    restarts : RestartPolicy or int
        How often the nodes are started again when one has failed. A number is that of a `RestartPolicy` with its other
        defaults; the policy has the failures after which they are. What `train` has fed since the last checkpoint is
        fed again. With ``RestartPolicy(scope="node")`` only the node that has failed is started again, and gets its
        rows again.
    start_timeout : float
        Seconds to wait for executors that the cluster manager was asked for, at the start and at each restart, and
        then as many seconds for the nodes to come up.
    ps_on_driver : bool
        Whether the parameter servers run on the driver's machine, and take no slots.
    warm_nodes : bool
        Whether executors keep a process that has imported TensorFlow, once a node has, from which later nodes are
        forked: in about a second instead of the seconds that the import takes. It uses about 300 MB of memory, and
        ends with the application, or ten minutes after its last cluster. Where forking is not safe, as with GPUs, and
        for nodes whose `env` or modules differ, nodes start without it.
    tls : bool, optional
        Whether what driver, tasks and nodes send to other hosts is encrypted; by default as Spark's settings ask. What
        TensorFlow sends is not encrypted: see docs/security.md.
    grace : float
        Seconds that nodes have to end after SIGTERM, before they are killed, if the program that started them raises
        or is interrupted. (At the end of a ``with`` block that does not, they have two.)
    show : str
        The node all of whose lines are shown: ``"chief"``, one by its name, as ``"worker:1"``, ``"all"`` or ``"none"``.
        Of other nodes, warnings and errors are shown, each distinct one once. Epochs, failures and restarts are always
        shown. See docs/logs.md.
    log_dir : str, optional
        A directory in which each node's output from `log_level` on is also written, as in ``worker-1.log``, and what
        happens to the cluster in ``driver.log``: a path of the driver's machine, or a URL of any file system. The last
        50 MiB of each node are kept.
    log_format : {"text", "json"}
        The form of the nodes' lines in the console and in `log_dir`: as they were printed, or an object of JSON in each
        line, with time, node, host, level and message; epochs, failures and restarts are such objects too.
    dashboard : bool or int
        Whether the driver serves a page that shows the training (`Cluster.dashboard_url`), or the port of that page.
        See docs/dashboard.md.
    metrics_port : int, optional
        The port at which the driver serves the metrics in Prometheus's text format (`Cluster.metrics_url`); 0 takes any
        free one. Needs the extra ``prometheus``.
    tracking : {"auto", "none"}
        Whether parameters, metrics and the report are logged to MLflow if a run is active in this process ("auto").
    gpus_per_node : int, optional
        The number of GPUs that Spark assigns to each node (`Context.gpus`), for these tasks alone: other tasks of the
        application keep their slots. By default nodes have the GPUs that Spark assigns to every task, or else the free
        ones of their host. See docs/gpus.md.
    network_interface : str, optional
        The network interface of each executor at which its nodes listen and reach each other: its name (``"ib0"``), a
        pattern (``"ib*"``), or a network that contains its address (``"10.1.0.0/16"``). Also for NCCL and gloo. By
        default the address under which Spark knows the executor. See docs/network.md.
    ports : str, optional
        The ports at which the driver and the nodes listen, TensorFlow's among them, as ``"7000-7100"``, where a
        firewall has others closed. By default the variable ``TFOS_PORTS`` of each executor and of the driver, or any.
        See docs/network.md.

    Raises
    ------
    SpecError
        If a setting can't be right; the error names it and its value.
    """

    num_workers: int | tuple[int, int] = 1
    num_ps: int = 0
    chief: bool = False
    evaluator: bool = False
    tensorboard: Annotated[str | None, _check_directory] = None
    env: Mapping[str, str] | None = None
    log_level: str | int = "INFO"
    heartbeat_timeout: Annotated[float, SECONDS, check_seconds] = 30.0
    restarts: RestartPolicy | int = 0
    start_timeout: Annotated[float, SECONDS] = 600.0
    ps_on_driver: bool = False
    warm_nodes: bool = True
    tls: bool | None = None
    grace: Annotated[float, SECONDS, _check_grace] = 0.0
    show: str = "chief"
    log_dir: str | None = None
    log_format: Literal["text", "json"] = "text"
    dashboard: Annotated[bool | int, _check_port] = False
    metrics_port: Annotated[int | None, _check_port] = None
    tracking: Literal["auto", "none"] = "auto"
    gpus_per_node: Annotated[int | None, _check_gpus] = None
    network_interface: Annotated[str | None, _check_interface] = None
    ports: Annotated[str | None, _check_ports] = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(ClusterSettings):
    """The settings of a cluster in one attempt, in the form in which its processes read them.

    It is nested in `LaunchPlan` (driver to task), `NodeAssignment` (task to supervisor) and `NodeSetup` (supervisor to
    node), so that a setting reaches every process.
    """

    spec: ClusterSpec = field(kw_only=False)  # of an elastic cluster: with the most workers, or those of this attempt
    program: bytes = field(kw_only=False, repr=False)  # the user's function and its arguments, by cloudpickle
    hold: bool = False  # whether a task keeps its slot until its node has ended
    min_workers: int | None = None  # of an elastic cluster
    env: dict[str, str] = field(default_factory=dict)
    log_level: int = 0
    restarts: RestartPolicy = field(default_factory=lambda: RestartPolicy(0))
    show: str | None = None  # type: ignore[assignment]  # a node's name; "none" for no node, None for all
    attempt: int = 0  # restarts before this attempt
    first_feed: int = 0  # number of the first feed of this attempt
    saved_to: tuple[str, ...] = ()  # the directories of checkpoints that the attempts before this one have written

    @property
    def restarts_nodes(self) -> bool:
        """Whether a node that has failed is started again alone."""
        return self.restarts.scope == "node"

    @property
    def page_port(self) -> int | None:
        """The port of the page, 0 for any free one; None if there is no page."""
        if isinstance(self.dashboard, bool):
            return 0 if self.dashboard else None
        return self.dashboard
