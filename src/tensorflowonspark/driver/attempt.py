"""Cluster lifecycle: start, shut down and abort one attempt."""

import atexit
import logging
import os
import sys
import uuid
from threading import Event, Thread
from typing import TYPE_CHECKING

from tensorflowonspark import transport
from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.driver.spark.backend import Backend, Job, Stage
from tensorflowonspark.errors import ClusterError, FeedError, StartError
from tensorflowonspark.task.feeder import FeedSpec
from tensorflowonspark.task.launch import LaunchPlan
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport.shared_file import allow_files, can_share_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["GRACE_SECONDS", "ClusterAttempt"]

_log = logging.getLogger(__name__)
GRACE_SECONDS = 2.0  # for a process to end by itself before it is killed
_GOODBYE_SECONDS = 5.0  # for supervisors to hang up, and for Spark to end a job that was cancelled
_STAGE_END_SECONDS = 1.0  # for tasks whose supervisors have ended to end too, which needs no cancelling
_FILES_PER_NODE = 10  # a connection through the gate has seven
_LOOKS = 6  # for silent nodes, in the time that they may be silent


class ClusterAttempt:
    """Brings the nodes of one cluster up, once, and ends all that it has started, in whatever state it is.

    Parameters
    ----------
    backend : Backend
        What carries the nodes.
    settings : Settings
        What they are to be.
    """

    def __init__(self, backend: Backend, settings: ClusterConfig) -> None:
        self.backend = backend
        self.credentials = transport.Credentials("")  # made by `start`
        self.watcher = ConsoleReporter()
        self._settings = settings
        self.cluster_id = uuid.uuid4().hex
        self.monitor = Monitor(
            settings.spec, self.cluster_id, self.watcher, settings.heartbeat_timeout, self._on_failure
        )
        self.address: tuple[str, int] = ("", 0)  # at which the driver is called
        self.feeding: Job | None = None  # the job that feeds just now; it is ended with the cluster
        self._order: FeedSpec | None = None  # what held tasks do with the rows that they feed
        self._server: transport.Server | None = None
        self._stage: Stage | None = None
        self._closed = False
        self._owner = os.getpid()
        self._over = Event()

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._server is not None

    @property
    def running(self) -> bool:
        """Whether it was started, and not closed since."""
        return self.started and not self._closed

    def require_own_process(self) -> None:
        """Raise `ClusterError` in a forked child of the driver: what it ends or feeds would be its parent's."""
        if not self.is_own_process:
            raise ClusterError(
                f"process {os.getpid()} is a forked child of the driver {self._owner}, in which the cluster lives: use "
                "the cluster there"
            )

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that has made the cluster, and not a forked child of it."""
        return os.getpid() == self._owner

    def start(self, data: "DataFrame | None" = None, order: "FeedSpec | None" = None) -> None:
        """Bring all nodes up; with `data`, their tasks begin to feed them, as `order` says."""
        self.require_own_process()
        if self.started:
            raise ClusterError("the cluster was started before: make a new one")
        self._order = order
        nodes = len(self._settings.spec.roles)
        if can_share_files() and not allow_files(_FILES_PER_NODE * nodes):
            raise StartError(
                f"{nodes} nodes need {_FILES_PER_NODE * nodes} open files in the driver, more than its host allows: "
                "raise the hard limit (ulimit -Hn), or take fewer nodes"
            )
        had = nodes if self._settings.attempt else 0  # and an executor that was lost is replaced
        self.backend.find_slots(nodes, nodes, self._settings.start_timeout, had)
        tls = self.backend.wants_tls() if self._settings.tls is None else self._settings.tls
        self.credentials = transport.new_credentials(tls=tls)
        self._server, self.address = self.backend.listen(self.credentials, self.monitor.serve)
        atexit.register(self.abort)  # a program that ends without a word must not leave anything running
        Thread(target=self._look_for_silence, daemon=True).start()
        try:
            self._stage = self.backend.place(self._plan(), data, on_end=self.monitor.wake)
            if not self.monitor.wait(self._is_up, self._settings.start_timeout):
                raise StartError(self._missing())
            self._raise_stage_problems()
        except BaseException:
            self.abort()
            raise

    def _plan(self) -> LaunchPlan:
        return LaunchPlan(
            config=self._settings,
            cluster_id=self.cluster_id,
            credentials=self.credentials,
            driver=self.address,
            hadoop=self.backend.hadoop_settings(),
            echo=not self.backend.shares_terminal,  # or each line would be there twice
            feed=self._order,
            python=sys.version_info[:2],
        )

    def _is_up(self) -> bool:
        assert self._stage is not None
        if all(node.state.value >= NodeState.RUNNING.value for node in self.monitor.nodes):
            return self._settings.hold or self._stage.ended
        return self._stage.ended and (bool(self._stage.problems()) or bool(self._awaited()))

    def _awaited(self) -> list[Node]:
        """Return the nodes whose supervisors have not called: none, once their tasks have ended well."""
        return [node for node in self.monitor.nodes if node.state is NodeState.AWAITED]

    def _raise_stage_problems(self) -> None:
        assert self._stage is not None
        problems = self._stage.problems() if self._stage.ended else []
        if problems:
            data_problem = self._stage.data_problem()
            if data_problem is not None:
                raise data_problem
            raise StartError("the cluster did not come up:\n" + "\n".join(f"  {problem}" for problem in problems))
        if self._stage.ended and self._order is not None and len(self._awaited()) == len(self.monitor.nodes):
            raise FeedError("the DataFrame has no rows: there is nothing to train on")  # so Spark ran no task
        if self._stage.ended and self._awaited():
            names = ", ".join(str(node.role) for node in self._awaited())
            raise StartError(f"Spark's barrier stage ended without having placed {names}: see it in Spark's UI")

    def _missing(self) -> str:
        waiting = [node for node in self.monitor.nodes if node.state.value < NodeState.RUNNING.value]
        names = ", ".join(f"{node.role} ({_what_is_missing(node)})" for node in waiting) or "the stage's end"
        computing = (
            "" if self._order is None else "Spark may still be computing the DataFrame (raise start_timeout), or "
        )
        return (
            f"the cluster did not come up within {self._settings.start_timeout:g} s (start_timeout); still waiting for "
            f"{names}: {computing}other jobs may hold the slots; see the executors and the running stages in Spark's UI"
        )

    def _look_for_silence(self) -> None:
        while not self._over.wait(self._settings.heartbeat_timeout / _LOOKS):
            self.monitor.look_around()

    def abort(self) -> None:
        """End everything, now."""
        self.close(0.0)

    def close(self, grace_seconds: float) -> None:
        """End everything that was started; never raises, never waits for long, does nothing in a forked child."""
        if self._closed or not self.is_own_process:
            return
        self._closed = True
        atexit.unregister(self.abort)
        self._over.set()
        self.monitor.stop(grace_seconds)
        if self.feeding is not None:
            self.feeding.cancel()
        late = self.monitor.wait_until_gone(grace_seconds + _GOODBYE_SECONDS)
        if late:
            names = ", ".join(f"{node.role} on {node.host}" for node in late)
            text = "%s did not confirm its end; it ends by itself when it notices that the driver hung up"
            CONSOLE.log(_log, logging.WARNING, text, names)
        if self._stage is not None:
            self._stage.wait(_STAGE_END_SECONDS)
            self._stage.cancel()
            self._stage.wait(_GOODBYE_SECONDS)
        if self._server is not None:
            self._server.close()
        self.watcher.close()

    def _on_failure(self) -> None:
        """End the feeding as soon as a node's failure is certain."""
        if self.feeding is not None:
            self.feeding.cancel()


def _what_is_missing(node: Node) -> str:
    if node.state is NodeState.AWAITED:
        return "no word from it: its Spark task has not started, or can't reach the driver"
    return f"its process on {node.host} is not up"
