"""The supervisor: starts a node, monitors it, forwards its messages, and ends it.

Threads receive (from the task, the node, the driver, and the ends of processes) and put events into one inbox. One
thread handles them in order.
"""

import logging
import os
import queue
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import singledispatchmethod
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread, Timer
from typing import Any

from tensorflowonspark import transport
from tensorflowonspark.config import NODE_END_SECONDS
from tensorflowonspark.errors import FailureKind
from tensorflowonspark.messages import (
    Connected,
    Detach,
    Failed,
    FrameworkImported,
    Heartbeat,
    Lines,
    Member,
    Members,
    NodeReady,
    NodeStatus,
    PortReleased,
    Probe,
    Register,
    ReleasePort,
    Returned,
    Stacks,
    StacksRequest,
    StatusRequest,
    Stop,
    ToDriver,
    ToNode,
    ToSupervisor,
)
from tensorflowonspark.processes import watch_process
from tensorflowonspark.supervisor.exit_status import explain, shell_code
from tensorflowonspark.supervisor.host import executor_id, reserve_port
from tensorflowonspark.supervisor.host_notices import HostNotices
from tensorflowonspark.supervisor.node_process import NodeProcess, has_ended
from tensorflowonspark.supervisor.outbox import Outbox
from tensorflowonspark.supervisor.pending_probe import PendingProbe
from tensorflowonspark.supervisor.stack_requests import StackRequests
from tensorflowonspark.supervisor.supervisor_client import NodeAssignment
from tensorflowonspark.supervisor.tensorboard import TensorBoard
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)
_LAST_SECONDS = 2.0  # for the driver to read the last messages
_ENDED = object()  # in the inbox: the source has ended


class Supervisor:
    """Holds one node from its start to its end.

    If the pipe to the Spark task ends before the task has detached, the node is ended too.
    """

    def __init__(self, assignment: NodeAssignment, task: Connection) -> None:
        self._assignment = assignment
        self._task: Connection | None = task
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._driver: transport.Channel | None = None
        self._outbox: Outbox | None = None  # for the driver
        self._beside: list[TensorBoard | HostNotices] = []
        self._outcome_sent = False  # the program has returned or failed
        self._failed = False  # and the driver has the reason
        self._exited = False
        self._probe = PendingProbe()
        self._stop: Stop | None = None  # the message that ends the node, once it has come
        self._ended = False

    def run(self) -> None:
        """Run until the node has ended and everything is cleaned up."""
        try:
            reservation = reserve_port(self._assignment.port, self._assignment.config.ports)
        except (OSError, OverflowError, ValueError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            port = self._assignment.port or os.environ.get("TENSORFLOW_PORT")
            reason = f"it can't have {f'port {port}' if port else 'a port for TensorFlow'} ({why})"
            advice = "unset TENSORFLOW_PORT, or place one node per host"
            self._refuse(reason, advice if port else "a node needs two or three ports of its host: widen ports")
            return
        with reservation as self._port:
            try:
                self._node = NodeProcess(self._assignment, self._on_lines)
            except (OSError, RuntimeError) as error:
                advice = (
                    "see the limits of the executors' user and host: room in spark.local.dir, open files (ulimit -n), "
                    "processes (ulimit -u), memory"
                )
                self._refuse(f"its process can't be started ({error})", advice)
                return
            try:
                self._stacks = StackRequests(self._node, self._send_driver)
                if self._connect(self._port.getsockname()[1]):
                    self._start_receivers()
                    self._loop()
            finally:
                self._close()

    # ---- start

    def _refuse(self, reason: str, advice: str) -> None:
        """Report to the task that there will be no node."""
        assert self._task is not None
        self._task.send(Failed(FailureKind.LOST, reason, advice))

    def _connect(self, port: int) -> bool:
        """Register the node with the driver, report the result to the task, and return it."""
        assignment = self._assignment
        assert self._task is not None
        try:
            self._driver = transport.connect(assignment.driver, assignment.credentials).channel()
            member = Member(assignment.number, assignment.role, assignment.host, port, assignment.gpus)
            executor = executor_id(assignment.jvm_pid)
            self._driver.send(Register(member, assignment.cluster_id, os.getpid(), assignment.jvm_pid, executor))
        except transport.ConnectionLost as error:
            reason = "it can't reach the driver at {}:{} ({})".format(*assignment.driver, error)
            self._refuse(reason, "open that address to the executors, or set spark.driver.host to one they can reach")
            return False
        self._outbox = Outbox(self._driver.send)
        try:
            self._driver.receive()
        except transport.ConnectionLost as error:
            advice = "its cluster has ended or failed already; the first failure has the reason"
            self._refuse(f"the driver rejected it ({error})", advice)
            return False
        self._task.send(Connected())
        return True

    def _start_receivers(self) -> None:
        assert self._driver is not None
        assert self._task is not None
        self._receive_from("task", self._task.recv)
        self._receive_from("node", self._node.pipe.recv)
        self._receive_from("driver", self._driver.receive)
        Thread(target=lambda: self._inbox.put(("exit", self._node.wait())), daemon=True).start()
        watch_process(self._assignment.jvm_pid, lambda: self._inbox.put(("executor", _ENDED)))

    def _receive_from(self, source: str, receive: Callable[[], Any]) -> None:
        def pump() -> None:
            with suppress(EOFError, OSError):  # ConnectionLost is an OSError
                while True:
                    self._inbox.put((source, receive()))
            self._inbox.put((source, _ENDED))

        Thread(target=pump, daemon=True).start()

    # ---- the loop

    def _loop(self) -> None:
        ends: dict[str, Callable[[], None]] = {
            "task": self._on_task_end,
            "task over": self._on_task_over,
            "node": lambda: None,  # the exit of the process explains more
            "driver": self._on_driver_end,
            "executor": self._on_executor_end,
        }
        interval = self._assignment.config.heartbeat_seconds
        sent = time.monotonic()
        while not self._ended:
            wait = min(interval, self._node.liveness.interval, self._probe.seconds)
            with suppress(queue.Empty):
                source, event = self._inbox.get(timeout=wait)
                if source == "exit":
                    self._on_exit(event)
                elif source == "reached":
                    self._probe.note_unreached(event)
                elif event is _ENDED:
                    ends[source]()
                else:
                    self._on_message(source, event)
            self._check_liveness()
            if not self._probe.seconds:
                self._reply_to_probe()
            if time.monotonic() - sent > interval:
                sent = time.monotonic()
                self._send_driver(self._node.liveness.usage or Heartbeat())
                self._node.send(Heartbeat())

    def _check_liveness(self) -> None:
        """Report a node that is idle, stopped, or active again."""
        if self._stop is not None or not self._node.is_running:
            return
        change = self._node.liveness.check()
        if isinstance(change, Failed):
            self._fail(change.kind, change.reason, change.advice)
        elif change is not None:
            self._send_driver(change)

    # ---- messages

    def _on_message(self, source: str, message: Any) -> None:
        """Handle a message, and forward it unless it is for the supervisor."""
        if isinstance(message, transport.Sealed):
            (self._node.send if source == "driver" else self._send_driver)(message.content)
            return
        self._handle(message)
        if isinstance(message, ToSupervisor):
            return
        if isinstance(message, ToNode) and source == "driver":
            self._node.send(message)
        elif isinstance(message, ToDriver) and source in ("node", "task"):
            self._send_driver(message)
        else:
            text = "the %s sent a %s, which has no receiver"
            CONSOLE.log(_log, logging.ERROR, text, source, type(message).__name__)

    @singledispatchmethod
    def _handle(self, message: Any) -> None:
        if isinstance(message, ToSupervisor):
            CONSOLE.log(_log, logging.ERROR, "a %s has no handler in the supervisor", type(message).__name__)

    @_handle.register
    def _on_detach(self, _message: Detach) -> None:
        self._task = None

    @_handle.register
    def _on_node_status(self, message: NodeStatus) -> None:
        self._node.liveness.receive(message)
        self._reply_to_probe()

    @_handle.register
    def _on_framework_imported(self, _message: FrameworkImported) -> None:
        self._node.ensure_fork_server()

    @_handle.register
    def _on_release_port(self, _message: ReleasePort) -> None:
        self._port.close()
        self._node.send(PortReleased())

    @_handle.register
    def _on_stop(self, message: Stop) -> None:
        """Stop the node: by a message if its program has ended, else by SIGTERM; and at last by SIGKILL."""
        self._stop = message
        if not self._node.is_running:
            self._ended = True
            return
        if self._outcome_sent:
            self._node.send(message)
            self._node.kill_later(message.grace_seconds)
        else:
            self._node.signal(signal.SIGTERM, message.grace_seconds)

    @_handle.register
    def _on_probe(self, message: Probe) -> None:
        """Check the node: it replies, or has time to; but if its process has ended the failure is sent first."""
        self._probe.begin(message, lambda unreached: self._inbox.put(("reached", unreached)))
        if self._exited:
            self._reply_to_probe()
        self._node.send(StatusRequest())

    @_handle.register
    def _on_stacks_request(self, message: StacksRequest) -> None:
        self._stacks.begin(message)

    # Of messages that are forwarded:

    @_handle.register
    def _on_stacks(self, message: Stacks) -> None:
        self._stacks.receive(message)

    @_handle.register
    def _on_returned(self, _message: Returned) -> None:
        self._on_outcome()

    @_handle.register
    def _on_failed(self, _message: Failed) -> None:
        self._failed = True
        self._on_outcome()

    def _on_outcome(self) -> None:
        self._node.forward_output()  # the driver gets what the program wrote before it gets its outcome
        self._outcome_sent = True
        if self._stop is not None:  # the program has ended itself on SIGTERM; its process waits for this
            self._node.send(Stop(grace_seconds=0.0))

    @_handle.register
    def _on_node_ready(self, message: NodeReady) -> None:
        if self._task is not None:
            with suppress(OSError):
                self._task.send(message)

    @_handle.register
    def _on_members(self, _message: Members) -> None:
        assignment, config = self._assignment, self._assignment.config
        if config.notice is not None:
            self._beside.append(HostNotices(config.notice, self._send_driver))
        if config.tensorboard and assignment.role == config.spec.chief_role:
            copies = str(Path(self._node.private, "logs"))
            self._beside.append(TensorBoard(assignment, copies, self._send_driver))

    def _reply_to_probe(self) -> None:
        if not self._probe.waits:
            return
        if (not self._exited and has_ended(self._node.pid)) or has_ended(self._assignment.jvm_pid):
            self._probe.extend()  # the event of its end is about to come
            return
        stopped = self._node.liveness.stopped()
        if stopped is not None:
            self._fail(stopped.kind, stopped.reason, stopped.advice)
        self._send_driver(self._probe.answer())

    # ---- ends

    def _on_task_end(self) -> None:
        if self._task is not None:
            # A node that ends while it is fed ends its task too. Its own end explains more, and follows at once.
            later = Timer(NODE_END_SECONDS, self._inbox.put, (("task over", _ENDED),))
            later.daemon = True
            later.start()

    def _on_task_over(self) -> None:
        if (
            self._stop is not None
        ):  # Spark cancels the jobs of a driver that is interrupted; the node keeps its time to end
            return
        self._fail(
            FailureKind.EXECUTOR_LOST,
            "the Spark task that held it was ended",
            "see why in Spark's UI or log: the DataFrame could not be computed, or someone cancelled the job",
        )
        self._ended = True

    def _on_driver_end(self) -> None:
        self._ended = True

    def _on_executor_end(self) -> None:
        self._fail(
            FailureKind.EXECUTOR_LOST,
            "the executor that it ran on has ended",
            "see the executor's log in Spark's UI; killed for memory by YARN or Kubernetes: raise "
            "spark.executor.memoryOverhead",
        )
        self._ended = True

    def _on_exit(self, exit_code: int) -> None:
        """Report how the process ended; the supervisor stays until the driver sends `Stop` or disconnects."""
        self._exited = True
        if self._stop is not None:
            self._ended = True
            return
        if not self._failed:
            self._node.read_output()  # the reason is often in its last lines, which the driver gets first
            output = self._node.tail()
            explained = explain(exit_code, self._node.memory_kills(), returned=self._outcome_sent, output=output)
            self._fail(*explained, shell_code(exit_code))
        self._reply_to_probe()

    # ---- sending

    def _fail(self, kind: FailureKind, reason: str, advice: str, exit_code: int = 1) -> None:
        self._send_driver(Failed(kind, reason, advice, output=self._node.tail(), exit_code=exit_code))

    def _on_lines(self, lines: tuple[str, ...]) -> None:
        """Send lines, in the thread that reads them: a node that prints faster than the driver reads has to wait."""
        if self._outbox is not None:
            self._outbox.wait_for_room()
        self._send_driver(Lines(lines))

    def _send_driver(self, message: ToDriver | transport.Packed) -> None:
        if self._outbox is not None:
            self._outbox.send(message)

    def _close(self) -> None:
        self._node.kill()
        CONSOLE.drain()
        for each in self._beside:
            each.close()
        is_read = self._outbox is None or self._outbox.close(_LAST_SECONDS)
        if self._driver is not None and is_read:  # else the end of this process closes it
            self._driver.close()
        self._node.remove_files(self._stop is not None and self._stop.is_last)
