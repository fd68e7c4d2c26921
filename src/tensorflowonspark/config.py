"""Configuration of a cluster: its roles and ``TF_CONFIG``, and when it is started again after a failure."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tensorflowonspark.errors import FailureKind, SpecError

__all__ = ["ClusterSpec", "Job", "RestartPolicy", "Role", "tf_config"]


class Job(str, Enum):
    """What a node is in the cluster, by TensorFlow's names."""

    PS = "ps"
    CHIEF = "chief"
    EVALUATOR = "evaluator"
    WORKER = "worker"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, order=True)
class Role:
    """A node's place in the cluster: its job and its number within the job.

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
    """How many nodes of each job a cluster has.

    Parameters
    ----------
    num_workers : int
        Nodes that train, besides the chief.
    num_ps : int
        Parameter servers.
    chief : bool
        Whether there is a node of the job ``chief``. Without one, worker 0 does the chief's duties, as in
        ``MultiWorkerMirroredStrategy``; ``ParameterServerStrategy`` needs one.
    evaluator : bool
        Whether one more node evaluates beside the training.

    Raises
    ------
    SpecError
        If a count is negative or no integer, or no node would train.

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
        """The role that has the chief's duties: the chief, or else worker 0."""
        return self.trainers[0]

    @property
    def fed(self) -> tuple[Role, ...]:
        """The roles that rows are fed to: the workers, and a chief that trains beside them (so not with ps)."""
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

    The evaluator stands beside the cluster, not in it: the others' ``TF_CONFIG`` does not name it.

    Parameters
    ----------
    addresses : mapping of Role to str
        ``host:port`` of every node's TensorFlow server.
    role : Role
        The node that it is for.

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
    """How often a cluster is started again, after which failures, and how soon.

    All nodes are started again, on the executors that there are then, and the function runs from its beginning: it
    goes on from its last checkpoint (`Context.checkpoint`), and learns the number of its attempt (`Context.attempt`).

    Parameters
    ----------
    max_restarts : int
        How often, over the cluster's whole life.
    backoff : float
        Seconds before the second restart; they double with each one after it. The first one comes at once.
    max_backoff : float
        Seconds that are never exceeded.
    causes : collection of str
        The failures that count, by the `NodeError`'s ``cause``; others end the cluster. By default all but
        ``"raised"``: a program's own exception would most likely come again.

    Raises
    ------
    SpecError
        If a number is negative, or there is no such cause.

    Examples
    --------
    >>> policy = RestartPolicy(max_restarts=5, backoff=2, max_backoff=5)
    >>> [policy.delay(restart) for restart in range(5)]
    [0.0, 2.0, 4.0, 5.0, 5.0]
    """

    max_restarts: int = 3
    backoff: float = 1.0
    max_backoff: float = 60.0
    causes: Collection[str] = tuple(cause for cause in _CAUSES if cause != "raised")

    def __post_init__(self) -> None:
        if not isinstance(self.max_restarts, int) or isinstance(self.max_restarts, bool):
            raise SpecError(f"max_restarts={self.max_restarts!r}: expected a whole number")
        for name in ("max_restarts", "backoff", "max_backoff"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name}={getattr(self, name)!r}: expected 0 or more")
        unknown = [self.causes] if isinstance(self.causes, str) else sorted(set(self.causes) - set(_CAUSES))
        if unknown:
            raise SpecError(f"causes: there is no {unknown[0]!r}; there are {', '.join(_CAUSES)}")

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
