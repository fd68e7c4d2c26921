"""What the driver gives to the Spark tasks that place and feed nodes."""

from dataclasses import dataclass, field

from tensorflowonspark.messages import Ready
from tensorflowonspark.parts import Split, Storage
from tensorflowonspark.spec import ClusterSpec
from tensorflowonspark.transport import Credentials

__all__ = ["FeedOrder", "FeedTarget", "Plan"]


@dataclass(frozen=True)
class FeedOrder:
    """What a task is to do with the rows that it feeds."""

    feed: int
    split: Split = Split.TRAIN
    storage: Storage = field(default_factory=Storage)
    validation: str = ""  # a boolean column: rows to validate on, if there is one
    first_partition: int = 0  # what Spark's partition 0 is numbered in the feed


@dataclass(frozen=True)
class Plan:
    """All that a task must know to place its node."""

    cluster: str
    credentials: Credentials
    driver: tuple[str, int]
    spec: ClusterSpec
    program: bytes = field(repr=False)
    environment: dict[str, str]
    hadoop: dict[str, str] = field(repr=False)  # settings of file systems
    silence: float  # seconds without a sign of life after which a node is given up
    attempt: int
    first_feed: int
    level: int
    echo: bool
    tensorboard: str
    hold: bool  # stay until the node has ended
    feed: FeedOrder | None  # feed the node this task's own rows
    python: tuple[int, int]  # the driver's Python version
    first: int = 0  # the number of the node that task 0 places
    warm_nodes: bool = True  # whether nodes may be forked from a process that has imported TensorFlow


@dataclass(frozen=True)
class FeedTarget:
    """A node that takes rows."""

    number: int
    name: str
    host: str
    ready: Ready
    driver: tuple[str, int] = ("", 0)  # which knows why the node is gone, if it is
