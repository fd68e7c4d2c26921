"""What a supervisor tells the node that it starts."""

from dataclasses import dataclass, field

from tensorflowonspark.spec import ClusterSpec, Role
from tensorflowonspark.transport import Credentials

__all__ = ["NodeSetup"]


@dataclass(frozen=True)
class NodeSetup:
    """All that a node must know before it knows the others."""

    spec: ClusterSpec
    number: int
    role: Role
    host: str
    credentials: Credentials
    program: bytes = field(repr=False)  # the user's function and its arguments, by cloudpickle
    gpus: tuple[str, ...]
    feed_socket: str  # where it takes rows; empty if it is not fed
    local_directory: str  # for temporary files: one of its own, which goes with it
    hadoop: dict[str, str] = field(default_factory=dict, repr=False)  # settings of file systems
    silence: float = 30.0  # seconds without a word from the supervisor after which that is given up
    supervisor: int = 0  # its pid
    attempt: int = 0  # how often the cluster was started before
    first_feed: int = 0  # that the program is given
