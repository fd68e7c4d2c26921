"""Configuration of a cluster: its roles, and its settings as its processes read them; each node's ``TF_CONFIG``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.run_manifest import Record
from tensorflowonspark.settings import Dashboard, Logs, Network, Nodes

__all__ = [
    "CAUSE_SECONDS",
    "CERTAIN_SECONDS",
    "EXECUTOR_SECONDS",
    "HEARTBEATS_PER_TIMEOUT",
    "NODE_END_SECONDS",
    "PROBE_SECONDS",
    "REASON_SECONDS",
    "ClusterConfig",
    "ClusterSpec",
    "Job",
    "Role",
    "report_seconds",
    "tf_config",
]

HEARTBEATS_PER_TIMEOUT = 12  # that few nodes send within `ClusterConfig.heartbeat_timeout`, and looks for them
# How long the cause of a failure may take to be known after its consequence: each of these waits contains those above.
NODE_END_SECONDS = 0.3  # a supervisor: for the end of its node to be noticed after that of its task
CAUSE_SECONDS = 1.0  # the driver: for a failure of which the first one looks like a consequence
PROBE_SECONDS = 2.0  # the driver, after that: for supervisors to answer a probe
EXECUTOR_SECONDS = CAUSE_SECONDS + PROBE_SECONDS  # for an executor to end, which removes Spark's directories before
CERTAIN_SECONDS = EXECUTOR_SECONDS + 2.0  # a task that has lost its node: for the driver's answer to its question
REASON_SECONDS = 8.0  # Spark: for the cluster manager to report why an executor has ended; YARN's takes three or four
_LEAST_HEARTBEATS = 4  # of very many
_HEARTBEAT_SECONDS = 5.0  # between two of few nodes, at most
_FREQUENT_NODES = 200  # whose frequent messages the driver handles at little cost


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
                raise SpecError.of(name, count, f": expected a whole number of nodes, not {type(count).__name__}")
            if count < 0:
                raise SpecError.of(name, count, ": expected 0 or more nodes")
        for name in ("chief", "evaluator"):
            if not isinstance(getattr(self, name), bool):
                raise SpecError.of(name, getattr(self, name), ": expected True or False; a cluster has at most one")
        if not self.num_workers and not self.chief:
            raise SpecError.of(
                "num_workers", 0, " without a chief: no node would train; ask for at least one worker, or for a chief"
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

    The evaluator is not a part of TensorFlow's cluster: the ``TF_CONFIG`` of the other nodes does not contain it. The
    addresses are ``host:port`` of each node's TensorFlow server.

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


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(Logs, Dashboard, Network, Nodes):
    """The settings of a cluster in one attempt, in the form in which its processes read them.

    It is nested in `LaunchPlan` (driver to task), `NodeAssignment` (task to supervisor) and `NodeSetup` (supervisor to
    node), so that a setting reaches every process.
    """

    spec: ClusterSpec = field(kw_only=False)  # of an elastic cluster: with the most workers, or those of this attempt
    program: bytes = field(kw_only=False, repr=False)  # the user's function and its arguments, by cloudpickle
    imports_framework: bool = False  # the program, as far as its text says
    min_workers: int | None = None  # of an elastic cluster
    env: dict[str, str] = field(default_factory=dict)
    restarts: RestartPolicy = field(default_factory=lambda: RestartPolicy(0))
    tensorboard: str | None = None
    log_level: int = 0
    show: str | None = None  # type: ignore[assignment]  # a node's name; "none" for no node, None for all
    run: str = ""  # id of the cluster, over its restarts
    other_runs: tuple[str, ...] = ()  # ids of the same driver's other clusters that have not ended
    attempt: int = 0  # restarts before this attempt
    first_feed: int = 0  # number of the first feed of this attempt
    saved_to: tuple[str, ...] = ()  # the directories of checkpoints that the attempts before this one have written
    manifest: Record = field(default_factory=dict, repr=False)  # what the driver knows of the run

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats of a supervisor.

        Examples
        --------
        >>> [ClusterConfig(ClusterSpec(workers), b"").heartbeat_seconds for workers in (2, 400, 2000)]
        [2.5, 5.0, 7.5]
        """
        seconds = min(self.heartbeat_timeout / HEARTBEATS_PER_TIMEOUT, _HEARTBEAT_SECONDS)
        return min(report_seconds(seconds, len(self.spec.roles)), self.heartbeat_timeout / _LEAST_HEARTBEATS)

    @property
    def restarts_nodes(self) -> bool:
        """Whether a node that has failed is started again alone."""
        return self.restarts.scope == "node"


def report_seconds(seconds: float, nodes: int) -> float:
    """Return the seconds between two messages of a kind: of many nodes, as many as 200 nodes send.

    Examples
    --------
    >>> report_seconds(0.2, 2), report_seconds(0.2, 1000)
    (0.2, 1.0)
    """
    return seconds * max(1.0, nodes / _FREQUENT_NODES)
