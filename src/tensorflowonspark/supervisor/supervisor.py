"""The supervisor: starts one node, watches it, reports to the driver, ends it.

Threads only listen (to the task, the node, the driver, the executor's end, the node's output) and put what they hear
into one inbox; everything is decided in one place, in one thread, in order.
"""

import math
import os
import queue
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import psutil

from tensorflowonspark import processes, transport
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.feed_messages import FeedComplete, FeedFailed, PartitionFed, PassesEnded, StepGrant
from tensorflowonspark.messages import (
    HEARTBEATS_PER_TIMEOUT,
    Contributed,
    Failed,
    Heartbeat,
    Lines,
    Member,
    Members,
    NodeReady,
    NodeStatus,
    NoMoreFeeds,
    PortReleased,
    Probe,
    ProbeReply,
    Register,
    ReleasePort,
    Returned,
    StatusRequest,
    Stop,
    TensorBoardUp,
    TensorFlowImported,
)
from tensorflowonspark.node.driver_link import NodeSetup
from tensorflowonspark.processes import watch_process
from tensorflowonspark.supervisor.assignment import Connected, Detach, NodeAssignment
from tensorflowonspark.supervisor.exit_status import explain, out_of_memory_kills
from tensorflowonspark.supervisor.forkserver.client import ForkServer
from tensorflowonspark.supervisor.host import LOCAL_DIRECTORIES, reserve_port
from tensorflowonspark.supervisor.liveness import LivenessMonitor
from tensorflowonspark.supervisor.output import Output
from tensorflowonspark.terminal import CONSOLE

__all__ = ["Supervisor"]

_CAUSE_SECONDS = 0.3  # for the node's end to be noticed after its task's
_ANSWER_SECONDS = 0.5  # for the node to answer while the driver waits; native code may keep it from that
_OUTPUT_SECONDS = 1.0  # for the last lines of a process that has ended to be read
_BEAT_SECONDS = 5.0  # at most from one sign of life to the next: gRPC pings a silent peer only beside other messages
_ENDED = object()  # in the inbox: the source has ended


class Supervisor:
    """Holds one node from its start to its end.

    Parameters
    ----------
    assignment : Assignment
        Who the node is and what it runs.
    task : Connection
        The pipe to the Spark task; when it ends before the task has detached, so does the node.
    """

    def __init__(self, assignment: NodeAssignment, task: Connection) -> None:
        self._assignment = assignment
        self._name = str(assignment.role)
        self._task: Connection | None = task
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._driver: transport.Channel | None = None
        self._tensorboard: processes.Process | None = None
        self._fork_server: ForkServer | None = None
        self._private = ""
        self._spoken = False  # the node has said how its program ended
        self._failed = False  # by a failure, which the driver knows
        self._exited = False
        self._check: Probe | None = None  # which the driver has not got the answer to
        self._check_until = 0.0
        self._stopping = False

    def run(self) -> None:
        """Run until the node is gone and nothing of it is left."""
        try:
            reservation = reserve_port()
        except (OSError, OverflowError, ValueError) as error:
            assert self._task is not None
            why = (isinstance(error, OSError) and error.strerror) or error
            reason = f"it can't have port {os.environ.get('TENSORFLOW_PORT')} ({why})"
            self._task.send(Failed(FailureKind.LOST, reason, "unset TENSORFLOW_PORT, or place one node per host"))
            return
        with reservation as self._port:
            try:
                self._start_node()
            except (OSError, RuntimeError) as error:  # a thread that can't be started is the latter
                self._refuse(error)
                return
            try:
                if self._connect(self._port.getsockname()[1]):
                    self._listen()
                    self._loop()
            finally:
                self._end_everything()

    # ---- starting

    def _refuse(self, error: Exception) -> None:
        """Report that the node's process can't be started, and leave nothing."""
        if self._private:
            shutil.rmtree(self._private, ignore_errors=True)
        assert self._task is not None
        advice = (
            "see the limits of the executors' user and host: room in spark.local.dir, open files (ulimit -n), "
            "processes (ulimit -u), memory"
        )
        self._task.send(Failed(FailureKind.LOST, f"its process can't be started ({error})", advice))

    def _start_node(self) -> None:
        order = self._assignment
        # Only this user can enter it, and all that the node keeps there goes with it, however it ends.
        self._private = tempfile.mkdtemp(prefix="tfos-", dir=order.local_directory or None)
        socket = str(Path(self._private, "feed")) if order.role in order.spec.fed else ""
        self._memory_kills = out_of_memory_kills()
        reading, writing = os.pipe()
        environment = {**node_environment(os.environ, order.environment), LOCAL_DIRECTORIES: self._private}
        environment[processes.FAMILY] = self._private
        if order.warm and order.local_directory and not order.gpus and ForkServer.is_safe(environment):
            self._fork_server = ForkServer(order.local_directory, order.jvm_pid, environment)
        fork = partial(self._fork_server.fork, output=writing) if self._fork_server else None
        self._node, self._pipe = processes.start(
            "tensorflowonspark.node", environment, writing, leash=order.silence, private=self._private, fork=fork
        )
        os.close(writing)
        self._output = Output(reading, name=self._name, level=order.level, echo=order.echo, pass_on=self._pass_lines)
        self._pulse = LivenessMonitor(self._node.pid, order.silence, lambda: self._send_node(StatusRequest()))
        self._pipe.send(
            NodeSetup(
                spec=order.spec,
                number=order.number,
                role=order.role,
                host=order.host,
                credentials=order.credentials,
                program=order.program,
                gpus=order.gpus,
                feed_socket=socket,
                local_directory=self._private,
                hadoop=order.hadoop,
                silence=order.silence,
                supervisor=os.getpid(),
                attempt=order.attempt,
                first_feed=order.first_feed,
            )
        )

    def _connect(self, port: int) -> bool:
        """Reach the driver and say hello; tell the task whether that worked."""
        order = self._assignment
        assert self._task is not None
        try:
            self._driver = transport.connect(order.driver, order.credentials).channel()
            member = Member(order.number, order.role, order.host, port, order.gpus)
            self._driver.send(Register(member, order.cluster, os.getpid(), order.jvm_pid))
        except transport.ConnectionLost as error:
            where = "{}:{}".format(*order.driver)
            reason = f"it can't reach the driver at {where} ({error})"
            advice = "open that address to the executors, or set spark.driver.host to one that they can reach"
            self._task.send(Failed(FailureKind.LOST, reason, advice))
            return False
        try:
            self._driver.receive()  # the driver answers a hello that it accepts
        except transport.ConnectionLost as error:
            reason = f"the driver turned it away ({error})"
            advice = "its cluster has ended or failed already; the first failure says why"
            self._task.send(Failed(FailureKind.LOST, reason, advice))
            return False
        self._task.send(Connected())
        return True

    def _listen(self) -> None:
        assert self._driver is not None
        assert self._task is not None
        self._listen_to("task", self._task.recv)
        self._listen_to("node", self._pipe.recv)
        self._listen_to("driver", self._driver.receive)
        Thread(target=lambda: self._inbox.put(("exit", self._node.wait())), daemon=True).start()
        watch_process(self._assignment.jvm_pid, lambda: self._inbox.put(("executor", _ENDED)))

    def _listen_to(self, source: str, receive: Callable[[], Any]) -> None:
        def pump() -> None:
            with suppress(EOFError, OSError):  # ConnectionLost is an OSError
                while True:
                    self._inbox.put((source, receive()))
            self._inbox.put((source, _ENDED))

        Thread(target=pump, daemon=True).start()

    # ---- the loop

    def _loop(self) -> None:
        handlers = {
            "task": self._on_task,
            "task over": self._on_task_over,
            "node": self._on_node,
            "driver": self._on_driver,
            "exit": self._on_exit,
            "executor": self._on_executor_end,
            "tensorboard": self._on_tensorboard,
        }
        beat = min(self._assignment.silence / HEARTBEATS_PER_TIMEOUT, _BEAT_SECONDS)
        spoke = time.monotonic()
        going_on = True
        while going_on:
            try:
                source, message = self._inbox.get(timeout=min(beat, self._pulse.interval, self._until_checked()))
            except queue.Empty:
                pass
            else:
                going_on = handlers[source](message)
            self._look_after_node()
            if self._check is not None and not self._until_checked():
                self._end_check()
            if time.monotonic() - spoke > beat:
                spoke = time.monotonic()
                self._tell_driver(Heartbeat())
                self._send_node(Heartbeat())

    def _look_after_node(self) -> None:
        """Tell the driver if the node does nothing that it could be doing."""
        word = None if self._stopping or self._node.poll() is not None else self._pulse.look()
        if isinstance(word, Failed):
            self._fail(word.kind, word.reason, word.advice)
        elif word is not None:
            self._tell_driver(word)

    def _on_task(self, message: Any) -> bool:
        if isinstance(message, Detach):
            self._task = None
        elif isinstance(message, (PartitionFed, FeedFailed)):
            self._tell_driver(message)
        elif message is _ENDED and self._task is not None:
            # A node that dies while it is fed ends its task too: its own end says more, and comes in a moment.
            later = Timer(_CAUSE_SECONDS, self._inbox.put, (("task over", _ENDED),))
            later.daemon = True
            later.start()
        return True

    def _on_task_over(self, _message: Any) -> bool:
        self._fail(
            FailureKind.EXECUTOR_LOST,
            "the Spark task that held it was ended",
            "see why in Spark's UI or log: the DataFrame could not be computed, or someone cancelled the job",
        )
        return False

    def _on_node(self, message: Any) -> bool:
        if message is _ENDED:
            return True  # the process's exit says more
        if isinstance(message, NodeStatus):
            self._pulse.answered(message)
            self._end_check()
            return True
        if isinstance(message, TensorFlowImported):
            if self._fork_server is not None:  # the next node on this executor need not import it any more
                self._fork_server.ensure()
            return True
        if isinstance(message, ReleasePort):
            self._port.close()
            self._send_node(PortReleased())
            return True
        self._spoken = self._spoken or isinstance(message, (Returned, Failed))
        self._failed = self._failed or isinstance(message, Failed)
        if isinstance(message, NodeReady) and self._task is not None:
            with suppress(OSError):
                self._task.send(message)
        self._tell_driver(message)
        return True

    def _on_driver(self, message: Any) -> bool:
        if message is _ENDED:
            return False
        if isinstance(message, Stop):
            self._stop(message)
        elif isinstance(message, Probe):
            self._begin_check(message)
        elif isinstance(message, (Members, FeedComplete, StepGrant, PassesEnded, NoMoreFeeds, Contributed)):
            self._send_node(message)
            if isinstance(message, Members) and self._assignment.tensorboard:
                self._start_tensorboard()
        return True

    def _begin_check(self, check: Probe) -> None:
        """Look whether the node is there: it answers, or has time to, but if its process has ended that comes first."""
        if self._check is None:
            self._check_until = time.monotonic() + _ANSWER_SECONDS
        self._check = check
        if self._exited:
            self._end_check()
        self._send_node(StatusRequest())

    def _until_checked(self) -> float:
        return max(0.0, self._check_until - time.monotonic()) if self._check is not None else math.inf

    def _end_check(self) -> None:
        if self._check is None:
            return
        if (not self._exited and _has_ended(self._node.pid)) or _has_ended(self._assignment.jvm_pid):
            self._check_until = time.monotonic() + _ANSWER_SECONDS  # the thread that waits for its end is about to tell
            return
        check, self._check = self._check, None
        stopped = self._pulse.stopped()
        if stopped is not None:
            self._fail(stopped.kind, stopped.reason, stopped.advice)
        self._tell_driver(ProbeReply(check.number))

    def _on_exit(self, exit_code: int) -> bool:
        self._exited = True
        if self._stopping:
            return False
        if not self._failed:
            self._output.tail(_OUTPUT_SECONDS)  # the reason is often in its last lines, and they come first
            kills = out_of_memory_kills() - self._memory_kills
            self._fail(*explain(exit_code, kills, returned=self._spoken))
        self._end_check()
        return True  # the driver will say stop, or be gone

    def _on_executor_end(self, _message: Any) -> bool:
        self._fail(
            FailureKind.EXECUTOR_LOST,
            "the executor that it ran on has ended",
            "see the executor's log in Spark's UI; killed for memory by YARN or Kubernetes: raise "
            "spark.executor.memoryOverhead",
        )
        return False

    def _on_tensorboard(self, message: Any) -> bool:
        if message is not _ENDED:
            url, problem = message
            self._tell_driver(TensorBoardUp(url) if url else Lines((f"TensorBoard did not start: {problem}",)))
        return True

    # ---- parts of it

    def _stop(self, order: Stop) -> None:
        """End the node: by word if its program is over, by SIGTERM if it isn't, by SIGKILL if neither helps."""
        if self._node.poll() is not None:
            self._inbox.put(("driver", _ENDED))  # nothing to wait for
            return
        self._stopping = True
        if self._spoken:
            self._send_node(order)
        else:
            processes.kill_group(self._node.pid, signal.SIGTERM)
        killer = Timer(order.grace_seconds, processes.kill_group, (self._node.pid,))
        killer.daemon = True
        killer.start()

    def _start_tensorboard(self) -> None:
        order = self._assignment
        self._tensorboard, pipe = processes.start(
            "tensorflowonspark.supervisor.tensorboard", os.environ, leash=order.silence
        )
        copies = str(Path(self._private, "logs"))  # of those that TensorBoard can't read where they are
        pipe.send((order.tensorboard, order.host, copies, order.hadoop))
        self._listen_to("tensorboard", pipe.recv)

    def _send_node(self, message: object) -> None:
        with suppress(OSError):  # its end is noticed
            self._pipe.send(message)

    def _fail(self, kind: FailureKind, reason: str, advice: str) -> None:
        self._tell_driver(Failed(kind, reason, advice, output=self._output.tail()))

    def _pass_lines(self, lines: tuple[str, ...]) -> None:
        self._tell_driver(Lines(lines))

    def _tell_driver(self, message: object) -> None:
        if self._driver is not None:
            with suppress(transport.ConnectionLost):  # its end is heard by the listener
                self._driver.send(message)

    def _end_everything(self) -> None:
        processes.kill_family(self._node.pid, self._private)
        self._node.wait()
        self._output.tail(_OUTPUT_SECONDS)
        CONSOLE.drain()
        if self._tensorboard is not None:
            processes.kill_group(self._tensorboard.pid)
            self._tensorboard.wait()
        if self._driver is not None:
            self._driver.close()
        shutil.rmtree(self._private, ignore_errors=True)  # at the end, as the leash wants it


def _has_ended(pid: int) -> bool:
    """Whether a process has ended, even if the one that started it has not waited for it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def node_environment(inherited: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return a node's environment: the executor's, without Spark's secrets, with our defaults and the user's wishes."""
    environment = {name: value for name, value in inherited.items() if "SECRET" not in name}
    environment["TF_GRPC_REUSE_PORT"] = "1"  # supervisor/host.py says why
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's native INFO and WARNING are for its developers
    environment.update(wanted)
    return environment
