"""What the driver gives to the Spark tasks that place and feed nodes."""

from dataclasses import dataclass, field

from tensorflowonspark.messages import Ready
from tensorflowonspark.spec import ClusterSpec

__all__ = ["FeedTarget", "Plan"]


@dataclass(frozen=True)
class Plan:
    """All that a task must know to place its node; its partition number is the node's number."""

    cluster: str
    token: str = field(repr=False)
    driver: tuple[str, int]
    spec: ClusterSpec
    program: bytes = field(repr=False)
    environment: dict[str, str]
    level: int
    echo: bool
    tensorboard: str
    hold: bool  # stay until the node has ended
    feed: bool  # feed the node this task's own rows
    python: tuple[int, int]  # the driver's Python version


@dataclass(frozen=True)
class FeedTarget:
    """A node that takes rows."""

    number: int
    name: str
    host: str
    ready: Ready
