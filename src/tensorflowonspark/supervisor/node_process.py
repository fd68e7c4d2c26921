"""The process of a node, with its private directory, output, liveness monitor and fork server."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Timer

import psutil

from tensorflowonspark import processes
from tensorflowonspark.messages import StatusRequest, ToNode
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.run_files import remove_ended, run_directory
from tensorflowonspark.secrecy import is_secret
from tensorflowonspark.supervisor.exit_status import out_of_memory_kills
from tensorflowonspark.supervisor.forkserver.forkserver_client import ForkServer
from tensorflowonspark.supervisor.host import LOCAL_DIRECTORIES
from tensorflowonspark.supervisor.liveness import LivenessMonitor
from tensorflowonspark.supervisor.outbox import Outbox
from tensorflowonspark.supervisor.output import Output
from tensorflowonspark.supervisor.supervisor_client import NodeAssignment
from tensorflowonspark.transport import Packed

_OUTPUT_SECONDS = 1.0  # for the last lines of a process that has ended to be read
_CGROUPS = Path("/sys/fs/cgroup")
# Files with microseconds of each period of so many: without a limit "max" (cgroup 2) or -1 (cgroup 1).
_CONTAINER_LIMITS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))


class NodeProcess:
    """Starts the process of a node and, with `close`, removes all that it leaves.

    `on_lines` is called with the lines that the node prints, in a thread. If the process can't be started, it raises
    `OSError` or `RuntimeError`, and nothing is left of it.
    """

    def __init__(self, assignment: NodeAssignment, on_lines: Callable[[tuple[str, ...]], None]) -> None:
        self._assignment = assignment
        self._fork_server: ForkServer | None = None
        remove_ended(assignment.local_directory, assignment.config.run, assignment.config.other_runs)
        # Only this user can enter it, and the node's files are removed with it, however the node ends.
        self.private = tempfile.mkdtemp(prefix="tfos-", dir=assignment.local_directory or None)
        try:
            self._start(on_lines)
        except (OSError, RuntimeError):  # a thread that can't be started is the latter
            shutil.rmtree(self.private, ignore_errors=True)
            raise

    def _start(self, on_lines: Callable[[tuple[str, ...]], None]) -> None:
        assignment, config = self._assignment, self._assignment.config
        self._run_directory = run_directory(assignment.local_directory, config.run)
        self._memory_kills = out_of_memory_kills()
        reading, writing = os.pipe()
        environment = node_environment(os.environ, config.env, assignment.interface)
        environment[LOCAL_DIRECTORIES] = self.private
        environment[processes.FAMILY] = self.private
        local_directory = assignment.local_directory
        if config.warm_nodes and local_directory and not assignment.gpus and ForkServer.is_safe(environment):
            self._fork_server = ForkServer(local_directory, assignment.jvm_pid, environment)
        first = config.imports_framework and is_crowded(assignment.nodes_here)
        fork = partial(self._fork_server.fork, output=writing, first=first) if self._fork_server else None
        self._process, self.pipe = processes.start(
            "tensorflowonspark.node",
            environment,
            writing,
            orphan_timeout=config.heartbeat_timeout,
            private=self.private,
            fork=fork,
        )
        os.close(writing)
        self._outbox = Outbox(self._write)
        name = str(assignment.role)
        self._output = Output(reading, name=name, level=config.log_level, echo=assignment.echo, on_lines=on_lines)
        self.liveness = LivenessMonitor(
            self.pid, config.heartbeat_timeout, lambda: self.send(StatusRequest()), assignment.gpus
        )
        self._outbox.send(
            NodeSetup(
                config=config,
                number=assignment.number,
                host=assignment.host,
                credentials=assignment.credentials,
                gpus=assignment.gpus,
                feed_socket=str(Path(self.private, "feed")) if assignment.role in config.spec.fed else "",
                local_directory=self.private,
                run_directory=str(self._run_directory),
                hadoop=assignment.hadoop,
                supervisor_pid=os.getpid(),
            )
        )

    @property
    def pid(self) -> int:
        """The process's pid, which is also the id of its process group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        return self._process.wait()

    def _write(self, message: object) -> None:
        if isinstance(message, Packed):
            self.pipe.send_bytes(message.data)
        else:
            self.pipe.send(message)

    def send(self, message: ToNode | Packed) -> None:
        """Send a message, without a wait: a node that holds Python's lock in native code reads none for hours."""
        self._outbox.send(message)

    def signal(self, number: int, kill_after: float) -> None:
        """Send a signal to the process group, and SIGKILL after `kill_after` seconds."""
        processes.kill_group(self.pid, number)
        self.kill_later(kill_after)

    def kill_later(self, seconds: float) -> None:
        """Kill the process group after some seconds."""
        killer = Timer(seconds, processes.kill_group, (self.pid,))
        killer.daemon = True
        killer.start()

    def ensure_fork_server(self) -> None:
        """Start a fork server from which the next nodes of this executor are forked, unless there is one."""
        if self._fork_server is not None:
            self._fork_server.ensure()

    def memory_kills(self) -> int:
        """Return the number of processes that the kernel has killed for memory since the node's start."""
        return out_of_memory_kills() - self._memory_kills

    def tail(self) -> str:
        """Return the last lines that the node printed."""
        return self._output.tail()

    def forward_output(self) -> None:
        """Wait until the lines that the node has written so far are forwarded."""
        self._output.settle(_OUTPUT_SECONDS)

    def read_output(self) -> None:
        """Wait until the output of a process that has ended is read."""
        self._output.tail(_OUTPUT_SECONDS)

    def kill(self) -> None:
        """Kill the process and all processes that it started; return when its output has been read."""
        processes.kill_family(self.pid, self.private)
        self._process.wait()
        self.read_output()

    def remove_files(self, is_last: bool) -> None:
        """Remove the private directory: the last step, without which the orphan guard cleans up.

        If it is the last node of its number, what the run has kept for others is removed too.
        """
        if is_last:
            shutil.rmtree(self._run_directory, ignore_errors=True)
        shutil.rmtree(self.private, ignore_errors=True)


def is_crowded(nodes: int) -> bool:
    """Return whether this host or container has too few processors for nodes and a fork server that each import."""
    processors: float = len(os.sched_getaffinity(0))
    for files in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or it says "max"
            quota, period = (int(word) for file in files for word in (_CGROUPS / file).read_text().split())
            processors = min(processors, quota / period) if quota > 0 else processors
    return processors <= nodes


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not waited for it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def node_environment(inherited: Mapping[str, str], requested: Mapping[str, str], interface: str = "") -> dict[str, str]:
    """Return a node's environment: the executor's without Spark's secrets, defaults, and the user's variables.

    What MLflow has there to log as the user is left out too: only the driver logs.

    Without an interface, the libraries for communication choose one.
    """
    environment = {name: value for name, value in inherited.items() if "SECRET" not in name}
    for name in [name for name in environment if name.startswith("MLFLOW_")]:
        if is_secret(name) or name == "MLFLOW_RUN_ID":
            del environment[name]
    environment["TF_GRPC_REUSE_PORT"] = "1"  # for `host.reserve_port`
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's native INFO and WARNING are for its developers
    if interface:
        environment["NCCL_SOCKET_IFNAME"] = f"={interface}"  # without the sign, NCCL takes it as the begin of a name
        environment["GLOO_SOCKET_IFNAME"] = interface
    environment.update(requested)
    return environment
