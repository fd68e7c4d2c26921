"""Configuration of a cluster: its roles, restart policy and other settings, and each node's ``TF_CONFIG``."""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_network
from typing import Any, Literal

from tensorflowonspark.errors import FailureKind, SpecError

__all__ = [
    "HEARTBEATS_PER_TIMEOUT",
    "ClusterConfig",
    "ClusterSpec",
    "Job",
    "Observability",
    "RestartPolicy",
    "Role",
    "check_seconds",
    "tf_config",
]

_LAST_PORT = 65535
HEARTBEATS_PER_TIMEOUT = 6  # sent by a supervisor within `ClusterConfig.heartbeat_timeout`


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


_CAUSES = tuple(kind.name.lower() for kind in FailureKind)


@dataclass(frozen=True)
class RestartPolicy:
    """The failures after which a cluster is restarted, the number of restarts, and the delays before them.

    A restart starts all nodes again, on the executors of that time, and runs the function from its beginning: the
    function resumes from its last checkpoint (`Context.checkpoint`), and `Context.attempt` is its number.

    Parameters
    ----------
    max_restarts : int
        Maximum number of restarts of the cluster; with ``scope="node"``, of each node.
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

    def __post_init__(self) -> None:
        if not isinstance(self.max_restarts, int) or isinstance(self.max_restarts, bool):
            raise SpecError(f"max_restarts={self.max_restarts!r}: expected a whole number")
        for name in ("max_restarts", "backoff", "max_backoff"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name}={getattr(self, name)!r}: expected 0 or more")
        unknown = [self.causes] if isinstance(self.causes, str) else sorted(set(self.causes) - set(_CAUSES))
        if unknown:
            raise SpecError(f"causes: {unknown[0]!r} is unknown; expected some of {', '.join(_CAUSES)}")
        if self.scope not in ("cluster", "node"):
            raise SpecError(f"scope={self.scope!r}: expected 'cluster' or 'node'")

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


@dataclass(frozen=True)
class Observability:
    """How a training can be watched from outside; `Cluster` documents the settings.

    Raises
    ------
    SpecError
        If a port is none, or `tracking` neither "auto" nor "none".
    """

    dashboard: bool | int = False  # whether there is a page, or its port
    metrics_port: int | None = None  # at which Prometheus reads
    tracking: Literal["auto", "none"] = "auto"  # of experiments, by MLflow

    def __post_init__(self) -> None:
        if not isinstance(self.dashboard, bool):
            _check_port("dashboard", self.dashboard, "True, False or a port")
        if self.metrics_port is not None:
            _check_port("metrics_port", self.metrics_port, "None or a port")
        if self.tracking not in ("auto", "none"):
            raise SpecError(f"tracking={self.tracking!r}: expected 'auto' or 'none'")

    @property
    def page_port(self) -> int | None:
        """The port of the page, 0 for any free one; None if there is no page."""
        if isinstance(self.dashboard, bool):
            return 0 if self.dashboard else None
        return self.dashboard


def _check_port(name: str, port: object, expected: str) -> None:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _LAST_PORT:
        raise SpecError(f"{name}={port!r}: expected {expected} from 0 (any free one) to {_LAST_PORT}")


@dataclass(frozen=True)
class ClusterConfig:
    """The settings of a cluster: what the user passed to `Cluster`, in one attempt.

    It is nested in `LaunchPlan` (driver to task), `NodeAssignment` (task to supervisor) and `NodeSetup` (supervisor to
    node), so that a setting reaches every process. `Cluster` documents the settings.

    Raises
    ------
    SpecError
        If the heartbeat time-out is not above 0, the grace is negative, a node's number of GPUs is below 1, or the
        network interface is neither a name nor a network.
    """

    spec: ClusterSpec  # of an elastic cluster: with the most workers, or those of this attempt
    program: bytes = field(repr=False)  # the user's function and its arguments, by cloudpickle
    hold: bool = False  # whether a task keeps its slot until its node has ended
    env: dict[str, str] = field(default_factory=dict)
    tensorboard: str | None = None  # a log directory
    log_level: int = 0
    heartbeat_timeout: float = 30.0  # seconds
    start_timeout: float = 600.0  # seconds
    restarts: RestartPolicy = field(default_factory=lambda: RestartPolicy(0))
    min_workers: int | None = None  # of an elastic cluster
    warm_nodes: bool = True
    tls: bool | None = None  # None: as Spark's settings ask
    grace: float = 0.0  # seconds that nodes have to end when the cluster is interrupted
    show: str | None = None  # the node all of whose lines are shown; "none" for no node, None for all
    log_dir: str | None = None  # where the output of each node is written: a path of the driver's machine, or a URL
    gpus_per_node: int | None = None  # that Spark assigns to each node's task; None: as the application's settings ask
    network_interface: str | None = None  # the name, a pattern of names, or the network of the nodes' addresses
    log_format: Literal["text", "json"] = "text"  # of the nodes' output
    observability: Observability = field(default_factory=Observability)
    attempt: int = 0  # restarts before this attempt
    first_feed: int = 0  # number of the first feed of this attempt

    def __post_init__(self) -> None:
        check_seconds("heartbeat_timeout", self.heartbeat_timeout)
        if not isinstance(self.grace, (int, float)) or not 0 <= self.grace < math.inf:
            raise SpecError(f"grace={self.grace!r}: expected 0 or more seconds")
        gpus = self.gpus_per_node
        if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1):
            raise SpecError(f"gpus_per_node={gpus!r}: expected a whole number of GPUs from 1 on, or None")
        if self.log_format not in ("text", "json"):
            raise SpecError(f"log_format={self.log_format!r}: expected 'text' or 'json'")
        if self.network_interface is not None:
            _check_interface(self.network_interface)

    @property
    def restarts_nodes(self) -> bool:
        """Whether a node that has failed is started again alone."""
        return self.restarts.scope == "node"


def _check_interface(wanted: object) -> None:
    """Raise `SpecError` if this is neither the name of a network interface, nor a pattern, nor an IPv4 network."""
    reason = ""
    if not isinstance(wanted, str) or not wanted or any(each.isspace() or each == "," for each in wanted):
        reason = "one interface"
    elif "/" in wanted or wanted.replace(".", "").isdigit():
        try:
            if ip_network(wanted, strict=False).version == 4:  # noqa: PLR2004
                return
            reason = "IPv4, as TensorFlow's addresses are"
        except ValueError as error:
            reason = str(error)
    if reason:
        raise SpecError(
            f"network_interface={wanted!r}: expected a name as 'ib0', a pattern as 'ib*', or a network as "
            f"'10.1.0.0/16' ({reason})"
        )
