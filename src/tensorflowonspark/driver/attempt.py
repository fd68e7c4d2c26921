"""Cluster lifecycle: start, shut down and abort one attempt."""

import atexit
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorflowonspark import transport
from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.advice import training_advice
from tensorflowonspark.driver.attempt_end import Run
from tensorflowonspark.driver.hangs import find_vanished
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.driver.placement import Placement
from tensorflowonspark.driver.planned_restarts import PlannedRestarts
from tensorflowonspark.driver.reception import Reception
from tensorflowonspark.driver.recovery import Recovery
from tensorflowonspark.driver.replacement import Replacements
from tensorflowonspark.driver.spark.backend import Backend, SlotsWanted
from tensorflowonspark.driver.spark.jobs import Job
from tensorflowonspark.driver.spark.naming import describe_job
from tensorflowonspark.errors import ClusterError, StartError
from tensorflowonspark.messages import Stop
from tensorflowonspark.task.feeder import FeedSpec
from tensorflowonspark.task.launch import LaunchPlan
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport.shared_file import allow_files, can_share_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)
GRACE_SECONDS = 2.0  # for a process to end before it is killed
_END_SECONDS = 5.0  # for supervisors to close their channels, and for Spark to end a job that was cancelled
_STAGE_END_SECONDS = 1.0  # for tasks whose supervisors have ended, before they are cancelled
_PEERS_PER_NODE = 2  # its supervisor and its task, which may connect while those of all other nodes do
FILES_PER_NODE = 4  # the connections of its supervisor and of its task, with some to spare


class ClusterAttempt:
    """Starts the nodes of one cluster, once, and ends everything that it has started, in whatever state that is."""

    def __init__(self, backend: Backend, config: ClusterConfig, run: Run, more_workers: int = 0) -> None:
        self.backend = backend
        self.credentials = transport.Credentials("")  # made by `start`
        self._config = config
        self.monitor = Monitor(config, run, self._on_failure, backend.why_lost)
        self._recovery = Recovery(self.monitor, self._leave_hosts)
        self.planned = PlannedRestarts(self.monitor, self._recovery)
        self._more_workers = more_workers  # that it would have, if there were slots
        self._replacements: Replacements | None = None
        if config.restarts_nodes:
            self._replacements = Replacements(backend, config, self.monitor, self._recovery, self._plan)
        self.address: tuple[str, int] = ("", 0)
        self.advice: str | None = None  # what bounded the last training of which that is certain
        self.job: Job | None = None  # that feeds; it ends with the cluster, or when a node fails
        self._server: transport.Server | None = None
        self._placement: Placement | None = None
        self._closed = False
        self._owner = os.getpid()

    @property
    def cluster_id(self) -> str:
        """The id with which its nodes register."""
        return self.monitor.members.cluster_id

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._server is not None

    @property
    def running(self) -> bool:
        """Whether it was started, and not closed since."""
        return self.started and not self._closed

    def require_own_process(self) -> None:
        """Raise `ClusterError` in a forked child of the driver: the nodes belong to its parent."""
        if not self.is_own_process:
            raise ClusterError(
                f"process {os.getpid()} is a forked child of the driver {self._owner}, to which the cluster belongs: "
                "use the cluster there"
            )

    @property
    def is_own_process(self) -> bool:
        """Whether this process has made the cluster, and is not a forked child of the one that has."""
        return os.getpid() == self._owner

    def start(self, data: "DataFrame | None" = None, feed: FeedSpec | None = None) -> None:
        """Bring all nodes up; return when their programs start.

        Where tasks hold the nodes, they feed the `data`. A wait that is in vain raises `SlotsError`, `StartError`,
        `FeedError` (Spark can't compute the data) or `NodeError`.
        """
        self.require_own_process()
        if self.started:
            raise ClusterError("the cluster was started before: make a new one")
        nodes = len(self._config.spec.roles)
        if can_share_files() and not allow_files(FILES_PER_NODE * nodes):
            raise StartError(
                f"{nodes} nodes need {FILES_PER_NODE * nodes} open files in the driver, more than its host allows: "
                "raise the hard limit (ulimit -Hn), or take fewer nodes"
            )
        had = nodes if self._config.attempt else 0  # the cluster manager replaces an executor that was lost
        self.backend.reserve_slots(self.slots_wanted(nodes, had))
        tls = self.backend.wants_tls() if self._config.tls is None else self._config.tls
        self.credentials = transport.new_credentials(tls=tls, patience=self._config.heartbeat_timeout)
        serve = Reception(self.monitor, self._recovery, self.planned).serve
        self._server, self.address = self.backend.listen(self.credentials, serve, self._config.ports)
        self._server.expect(_PEERS_PER_NODE * nodes)
        roster, restarts = self.monitor.roster, self._config.attempt
        self.monitor.run.metrics.begin_attempt(
            self.cluster_id, roster.nodes, roster.chief.number, restarts, self._find_advice
        )
        atexit.register(self.abort)  # a program that ends without shutting down leaves nothing running
        self._recovery.start()
        self.monitor.inbox.start()
        try:
            stage = self.backend.place(self._plan(feed), data, on_end=self.monitor.inbox.wake)
            self._placement = Placement(self.monitor, stage, is_fed=feed is not None)
            self._placement.wait()
        except BaseException:
            self.abort(is_last=False)  # after a restart another one may follow
            raise
        if self.backend.decommissions:
            self.planned.follow_spark(self.backend.find_decommissioned)
        if self._more_workers:
            self.planned.follow_slots(self._more, self._config.grow_after)
        if not self._config.hold:
            self.backend.release_slots()  # the tasks have returned

    def _more(self) -> int:
        """Return for how many workers more there are slots at present."""
        held = 0 if self._config.hold else len(self._config.spec.roles)  # the tasks of others have returned
        return min(self._more_workers, max(0, self.backend.free_slots() - held))

    def slots_wanted(self, needed: int, had: int) -> SlotsWanted:
        """Return what is asked for to have slots for so many nodes at least; a wait for other clusters can be ended."""
        spec = self._config.spec
        name = f"cluster {self.monitor.run.metrics.name!r} ({spec})"
        return SlotsWanted(name, needed, len(spec.roles), self._config.start_timeout, had, self.monitor.end.check)

    def raise_if_cancelled(self) -> None:
        """Raise `ClusterError` if a user has cancelled the tasks that launch or hold the nodes: no restart follows."""
        if self._placement is not None:
            self._placement.raise_if_cancelled()

    def _find_advice(self) -> str | None:
        return self.advice or self._present_advice()

    def _present_advice(self) -> str | None:
        in_step = not (self._config.spec.num_ps or self._config.restarts_nodes)
        return training_advice(self.monitor.roster.fed(), self.monitor.run.metrics, in_step=in_step)

    def _plan(self, feed: FeedSpec | None = None) -> LaunchPlan:
        return LaunchPlan(
            config=self._config,
            cluster_id=self.cluster_id,
            credentials=self.credentials,
            driver=self.address,
            hadoop=self.backend.hadoop_settings(),
            echo=not self.backend.shares_terminal,  # else each line would appear twice
            feed=feed,
            python=sys.version_info[:2],
            program=self.monitor.run.metrics.name,
            label=self.cluster_id,
        )

    def describe_job(self, what: str) -> str:
        """Return the description of a job of this cluster, for Spark's UI."""
        return describe_job(self.monitor.run.metrics.name, self.cluster_id, what)

    def advise(self, of_feeding: str | None = None) -> None:
        """Show what bounded the training that has ended, if that is certain: its feeding, or else what came after."""
        found = of_feeding or self._present_advice()
        self.monitor.run.metrics.end_training()
        if found is not None:
            self.advice = found
            if self._config.log_level <= logging.INFO:
                self.monitor.run.console.note(found)

    def abort(self, is_last: bool = True) -> None:
        """End everything; the nodes have the time that the user gives them when the cluster is interrupted."""
        self.close(self._config.grace, is_last)

    def close(self, grace_seconds: float, is_last: bool = True) -> None:
        """End everything that was started, within seconds; does nothing in a forked child.

        If it `is_last`, no restart follows, for which the nodes would keep something.

        It raises only what interrupts it, as a second Ctrl-C does: then the nodes are killed at once.

        Nodes have the grace to end before they are killed.
        """
        if self._closed or not self.is_own_process:
            return
        self._closed = True
        try:
            atexit.unregister(self.abort)
            self.monitor.end.stop(grace_seconds, is_last)
            self._cancel_job()
            late = self.monitor.wait_until_gone(grace_seconds + _END_SECONDS)
        except BaseException:
            self.monitor.roster.send_all(Stop(grace_seconds=0.0))
            self._release(self.monitor.wait_until_gone(_END_SECONDS))
            raise
        self._release(late)

    def _release(self, late: list[Node]) -> None:
        """End the stage and the server, now that the nodes have ended, apart from some that are late."""
        try:
            self._end_stage_and_server(late)
        finally:
            self.monitor.run.attempt_closed()

    def _end_stage_and_server(self, late: list[Node]) -> None:
        if late:
            names = ", ".join(f"{node.role} on {node.host}" for node in late)
            text = "%s did not confirm its end; it ends when it notices that the driver has closed the connection"
            CONSOLE.log(_log, logging.WARNING, text, names)
        if self._placement is not None:
            self._placement.close(_STAGE_END_SECONDS, _END_SECONDS)
        if self._replacements is not None:
            self._replacements.close(_STAGE_END_SECONDS)
        if self._server is not None:
            self._server.close()
        self.monitor.inbox.close()
        self.monitor.run.console.close()

    def _on_failure(self) -> None:
        self._cancel_job()
        self._leave_hosts([node for node in self.monitor.roster.nodes if node.program.answering])

    def _leave_hosts(self, nodes: Sequence[Node]) -> None:
        """Have Spark run the tasks of an inference elsewhere, if the hosts of these nodes do not answer."""
        for executor in {node.process.executor for node in find_vanished(nodes)}:
            self.backend.give_up_host(executor)

    def _cancel_job(self) -> None:
        if self.job is not None:
            self.job.cancel()
