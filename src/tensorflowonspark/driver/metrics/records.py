"""What `Cluster.metrics` returns: the present state of a cluster and its nodes, and what has happened so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensorflowonspark.messages import GpuUsage

_LEAST_SHARE = 0.005  # that is shown as text
EventKind = Literal["started", "notice", "failure", "restart", "node_restart", "ended"]


@dataclass(frozen=True)
class NodeMetrics:
    """The metrics of a node at one moment. What is not known, or does not apply, is None.

    Attributes
    ----------
    number : int
        The node's number in the cluster, from 0.
    name : str
        Its role, as in ``worker:0``.
    host : str or None
        The address of its host.
    state : str
        Its `NodeState` in lower case, as in ``running``: from the begin of its program on. A node whose program has
        returned stays ``returned``.
    restarts : int
        How often it was started again while the others continued.
    epoch, step, steps : int or None
        The current epoch and the steps taken in it (both from 0), and the number of steps of an epoch.
    rows, bytes : int or None
        The rows that its program has taken in this attempt, and the size of their values; None for a program that reads
        data of its own.
    total_steps : int
        The steps that it has taken in this attempt.
    rows_per_second, seconds_per_step : float or None
        Of the last seconds.
    waiting_for_rows, waiting_for_workers, computing : float or None
        Shares of the last seconds, from 0 to 1. The time in which gradients are sent counts as waiting for workers.
    cores : float or None
        The number of processor cores that it uses.
    memory : int or None
        The bytes of memory that its processes use.
    gpus : tuple of GpuUsage
        The use of its GPUs.
    values : mapping of str to float
        The metrics of its program that it reported last, as ``loss``; they may be NaN.
    straggler : bool
        Whether the other workers wait for this one.
    """

    number: int
    name: str
    host: str | None
    state: str
    restarts: int = 0
    epoch: int | None = None
    step: int | None = None
    steps: int | None = None
    rows: int | None = None
    bytes: int | None = None
    total_steps: int = 0
    rows_per_second: float | None = None
    seconds_per_step: float | None = None
    waiting_for_rows: float | None = None
    waiting_for_workers: float | None = None
    computing: float | None = None
    cores: float | None = None
    memory: int | None = None
    gpus: tuple[GpuUsage, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    straggler: bool = False


@dataclass(frozen=True)
class EpochMetrics:
    """An epoch that has ended, as the chief reported it.

    Attributes
    ----------
    epoch : int
        Its number, from 0. An epoch that is repeated after a restart has a record for each time.
    time : float
        When it ended, in seconds since 1970.
    seconds : float or None
        How long it took, with its validation.
    values : mapping of str to float
        The metrics at its end, as ``loss`` and ``val_loss``; they may be NaN.
    attempt : int
        The number of restarts before it.
    shown : bool
        Whether Keras prints them on the chief.
    """

    epoch: int
    time: float
    seconds: float | None
    values: Mapping[str, float]
    attempt: int = 0
    shown: bool = False


@dataclass(frozen=True)
class ClusterEvent:
    """Something that happened to the cluster.

    Attributes
    ----------
    time : float
        When, in seconds since 1970.
    kind : {"started", "notice", "failure", "restart", "node_restart", "ended"}
        What: all nodes are up, a host goes (or stays after all), a node failed, all nodes or one node are started
        again, the cluster has ended.
    text : str
        A description in one line.
    node : str or None
        The node that it is about.
    host, cause : str or None
        Of a failure: the node's host, and the kind of failure, as `NodeError.cause`.
    """

    time: float
    kind: EventKind
    text: str
    node: str | None = None
    host: str | None = None
    cause: str | None = None


@dataclass(frozen=True)
class Goodput:
    """What became of the time of the nodes that train, from the start of the cluster on, over all its attempts.

    Attributes
    ----------
    share : float
        The share of that time, from 0 to 1, in which they computed steps that count: all but those that were taken
        again after a restart.
    causes : mapping of str to float
        The shares of all else: ``start``, ``importing``, ``waiting_for_rows``, ``waiting_for_workers``, ``saving``,
        ``validating``, ``repeated_steps``, ``idle``, ``shutdown`` and ``other``. Together with `share` they add up
        to 1.

    Examples
    --------
    >>> print(Goodput(0.81, {"start": 0.06, "waiting_for_rows": 0.13, "saving": 0.0}))
    goodput 81 %: waiting for rows 13 %, start 6 %
    """

    share: float
    causes: Mapping[str, float]

    def __str__(self) -> str:
        found = sorted(((share, cause) for cause, share in self.causes.items() if share >= _LEAST_SHARE), reverse=True)
        rest = ", ".join(f"{cause.replace('_', ' ')} {100 * share:.0f} %" for share, cause in found)
        return f"goodput {100 * self.share:.0f} %" + (f": {rest}" if rest else "")


@dataclass(frozen=True)
class ClusterMetrics:
    """The metrics of a cluster at one moment (`Cluster.metrics`).

    Attributes
    ----------
    cluster : str
        The identifier of the present attempt.
    name : str
        The cluster's name, as Spark's UI shows it.
    state : {"new", "running", "ended", "failed"}
        Of the cluster as a whole.
    time : float
        The moment, in seconds since 1970.
    restarts : int
        How often all nodes were started again.
    rows, bytes : int or None
        The rows that the programs of all nodes have taken in this attempt, and their size; None if that is known of
        none.
    rows_per_second : float or None
        Of all nodes, in the last seconds.
    seconds_per_step : float or None
        The median of the nodes that train.
    nodes : tuple of NodeMetrics
        Each node, by number.
    epochs : tuple of EpochMetrics
        The epochs that have ended, of all attempts; of more than 20,000 the last ones.
    events : tuple of ClusterEvent
        Starts, failures and restarts.
    advice : str or None
        What bounds the training, and the setting that would help.
    total_epochs : int
        The number of epochs that have ended, of all attempts.
    seconds : float
        The time since the cluster was started; after its end, until then.
    goodput : Goodput or None
        The share of its nodes' time in which steps that count were computed, and what the rest went to; None before the
        start.
    validation : mapping of str to list of float
        What an evaluator has found (`Context.evaluate_checkpoints`): each metric's values, and as ``epoch`` the numbers
        of their epochs.
    sources : mapping of str to int
        The rows of each source in an epoch of the last feed, if that is a mixture.
    version : int
        Of the fields of these records: another one once a field has been renamed, or has another meaning.
    """

    cluster: str
    name: str
    state: Literal["new", "running", "ended", "failed"]
    time: float
    restarts: int
    rows: int | None
    bytes: int | None
    rows_per_second: float | None
    seconds_per_step: float | None
    nodes: tuple[NodeMetrics, ...]
    epochs: tuple[EpochMetrics, ...]
    events: tuple[ClusterEvent, ...]
    advice: str | None = None
    total_epochs: int = 0
    seconds: float = 0.0
    goodput: Goodput | None = None
    validation: Mapping[str, list[float]] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)
    version: int = 1
