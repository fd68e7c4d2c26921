"""What a node needs before it knows the other nodes."""

import secrets
from dataclasses import dataclass, field
from functools import partial

from tensorflowonspark.config import ClusterConfig, ClusterSpec, Role
from tensorflowonspark.transport import Credentials


@dataclass(frozen=True)
class NodeSetup:
    """What a node needs before it knows the other nodes."""

    config: ClusterConfig
    number: int
    host: str
    credentials: Credentials
    gpus: tuple[str, ...] = ()
    feed_socket: str = ""  # where it receives rows; empty if it is not fed
    local_directory: str = ""  # private, for temporary files
    run_directory: str = ""  # of this executor's nodes, over restarts of the cluster; need not exist
    hadoop: dict[str, str] = field(default_factory=dict, repr=False)  # Hadoop's settings, for file systems
    supervisor_pid: int = 0
    random_id: str = field(default_factory=partial(secrets.token_hex, 8))

    @property
    def identity(self) -> str:
        """The identity of this process, for calls of others that are meant for it alone."""
        return f"{self.role} on {self.host} ({self.random_id})"

    @property
    def spec(self) -> ClusterSpec:
        """The roles of the cluster."""
        return self.config.spec

    @property
    def role(self) -> Role:
        """The role of this node."""
        return self.config.spec.roles[self.number]
