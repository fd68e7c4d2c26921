"""Restarts of single nodes: one that fails is started again in a running attempt, while the others continue.

The supervisor of the new process is launched as the first one was, by a barrier stage, of one task. It registers under
an id of its own, so that no other process can take its place, and is sent the addresses of all nodes; the others are
sent its new one. `Recovery` has ended the former process, and a feed session feeds again the rows that the node held.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from threading import Lock, Thread

from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.decision import Failure, Replace, decide
from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.driver.recovery import Recovery
from tensorflowonspark.driver.spark.backend import Backend
from tensorflowonspark.driver.spark.jobs import Stage, first_cause
from tensorflowonspark.errors import ClusterError, FailureKind, SlotsError, is_planned
from tensorflowonspark.messages import Failed
from tensorflowonspark.task.launch import LaunchPlan
from tensorflowonspark.terminal import CONSOLE
from tensorflowonspark.transport import Channel

_log = logging.getLogger(__name__)
_END_SECONDS = 5.0  # for the former process to end: its slot, its GPUs and its files are then free


class Replacements:
    """Starts nodes of one attempt again, each alone, by the `plan` by which the attempt has launched its nodes."""

    def __init__(
        self,
        backend: Backend,
        config: ClusterConfig,
        monitor: Monitor,
        recovery: Recovery,
        plan: Callable[[], LaunchPlan],
    ) -> None:
        self._backend = backend
        self._config = config
        self._monitor = monitor
        self._recovery = recovery
        self._plan = plan
        self._placing = Lock()  # one asks for slots at a time
        self._stages: list[Stage] = []
        recovery.set_starter(self.start)

    def start(self, node: Node, failure: Failed, channel: Channel | None, executor: str, preempted: bool) -> None:
        """Start a node again that has failed, when its former process has ended; return at once.

        The channel and the executor, which may have been preempted, are those of the former process.
        """
        arguments = node, node.restarts, channel, failure, executor, preempted
        Thread(target=self._start, args=arguments, daemon=True).start()

    def close(self, seconds: float) -> None:
        """End the stages; the nodes have ended."""
        for stage in self._stages:
            stage.wait(seconds)
            stage.cancel()

    def _start(
        self, node: Node, restart: int, channel: Channel | None, failure: Failed, executor: str, preempted: bool
    ) -> None:
        """Start a node again, and wait until it is up or has failed once more (in a thread of its own)."""
        monitor, seconds = self._monitor, self._config.start_timeout

        def decided(stage: Stage) -> bool:
            launched = node.state is not NodeState.RESTARTING
            up = launched and node.state is not NodeState.CONNECTED
            return up or node.restarts != restart or (stage.ended and not launched)

        try:
            delay = monitor.ask(lambda: self._charge(node, restart, failure, preempted=preempted))
            if delay is None:
                return
            monitor.wait(lambda: channel not in monitor.roster.former, _END_SECONDS)
            if failure.kind is FailureKind.PREEMPTED:
                self._backend.leave_host(executor)
            if channel is not None and channel.is_unanswered:
                self._backend.give_up_host(executor)
            monitor.wait(lambda: False, delay)
            stage = self._launch(node)
            monitor.wait(lambda: decided(stage), seconds)
        except SlotsError as error:
            self._give_up(node, failure, f"it could not be started again: {error}")
            return
        except ClusterError:
            return  # the cluster has ended
        except Exception as error:  # of Spark's: the application may have ended
            self._give_up(node, failure, f"Spark can't start it again: {first_cause(error)}")
            return
        problem = f"it did not come up within {seconds:g} s (start_timeout)"
        if stage.ended and node.state is NodeState.RESTARTING:
            problem = "; ".join(stage.problems()) or "no task launched it: see the stage in Spark's UI"
        failed = replace(failure, reason=f"its restart failed: {problem}", traceback="")
        monitor.inbox.put(lambda: self._fail_start(node, restart, failed))

    def _give_up(self, node: Node, failure: Failed, why: str) -> None:
        failed = replace(failure, reason=f"{failure.reason}, and {why}", advice="", traceback="")
        self._monitor.inbox.put(lambda: self._recovery.fail(node, failed, placeable=False))

    # ---- events

    def _charge(self, node: Node, restart: int, failure: Failed, *, preempted: bool) -> float | None:
        """Count a restart of a node, whose former process is retired; return the seconds to wait before it.

        None if no restart is left after such a failure: it is then the failure of the node.
        """
        monitor = self._monitor
        if monitor.end.begun or node.restarts != restart:
            return None
        decision = decide(self._recovery.state_of(node), Failure(failure.kind.name.lower(), preempted))
        if not isinstance(decision, Replace):
            self._recovery.carry_out(node, failure, decision)
            return None
        node.used = node.used.add(decision)
        again = node.used.describe("It is", decision, self._config.restarts, ", while the others continue")
        reason = failure.reason.partition("\n")[0]
        happened = "was ended" if is_planned(failure.kind.name.lower()) else "failed"
        CONSOLE.log(_log, logging.WARNING, "%s on %s %s: %s\n%s", node.role, node.host, happened, reason, again)
        return decision.delay

    def _fail_start(self, node: Node, restart: int, failure: Failed) -> None:
        """Note that a restart of a node has failed, unless it is up or another restart has begun."""
        if node.restarts == restart and node.state in (NodeState.RESTARTING, NodeState.CONNECTED):
            self._recovery.fail(node, failure)

    # ---- placing

    def _launch(self, node: Node) -> Stage:
        config = self._config
        with self._placing:
            # Tasks that hold their slots use all that there were; parameter servers may need none.
            slots = len(config.spec.roles) if config.hold else 1 + config.spec.num_ps
            self._backend.find_slots(slots, slots, config.start_timeout, slots)
            self._monitor.end.check()
            own = replace(config, attempt=config.attempt + node.restarts, first_feed=node.feed.first)
            plan = replace(
                self._plan(), config=own, cluster_id=self._monitor.members.id_of(node), first_node=node.number, count=1
            )
            if config.spec.num_ps and node.member is not None:  # where TensorFlow looks for it
                plan = replace(plan, address=(node.member.host, node.member.port))
            stage = self._backend.place(plan, None, on_end=self._monitor.inbox.wake)
            self._stages.append(stage)
        try:
            self._monitor.end.check()
        except ClusterError:
            stage.cancel()  # `close` has not seen it
            raise
        return stage
