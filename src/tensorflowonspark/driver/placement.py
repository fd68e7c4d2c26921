"""The placing of nodes: the stage of Spark's tasks that launch or hold them, and why they are not up."""

from tensorflowonspark.driver.monitor import Monitor
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.driver.spark.jobs import Stage
from tensorflowonspark.driver.spark.lost_executors import names_lost_executor
from tensorflowonspark.errors import ClusterError, FeedError, StartError

_CANCELLED_SECONDS = 2.0  # for Spark to report that it has cancelled a stage whose tasks have ended


class Placement:
    """The placing of one attempt's nodes by a stage; `is_fed`: its tasks feed the nodes that they hold."""

    def __init__(self, monitor: Monitor, stage: Stage, *, is_fed: bool) -> None:
        self._monitor = monitor
        self._stage = stage
        self._is_fed = is_fed
        self._seconds = monitor.config.start_timeout

    def wait(self) -> None:
        """Wait until all nodes are up; what keeps them from it is a `StartError`, `FeedError` or `NodeError`."""
        if not self._monitor.wait(self._is_up, self._seconds):
            raise StartError(self._describe_missing())
        self._raise_problems()

    def close(self, seconds: float, cancel_seconds: float) -> None:
        """End the stage, whose tasks have some time to end, and Spark to cancel them."""
        self._stage.wait(seconds)
        self._stage.cancel()
        self._stage.wait(cancel_seconds)

    def raise_if_cancelled(self) -> None:
        """Raise `ClusterError` if a user has cancelled the tasks: no restart follows."""
        self._stage.wait(_CANCELLED_SECONDS)
        if cancelled := self._stage.cancelled():
            raise ClusterError(f"the Spark tasks that hold the nodes were cancelled: {cancelled}")

    def _is_up(self) -> bool:
        if not self._monitor.roster.count(NodeState.AWAITED, NodeState.CONNECTED):
            return self._monitor.config.hold or self._stage.ended
        return self._stage.ended and (bool(self._stage.problems()) or bool(self._awaited()))

    def _awaited(self) -> list[Node]:
        """Return the nodes whose supervisors have not connected: none, once all their tasks have succeeded."""
        return [node for node in self._monitor.roster.nodes if node.state is NodeState.AWAITED]

    def _raise_problems(self) -> None:
        if not self._stage.ended:
            return
        if problems := self._stage.problems():
            self.raise_if_cancelled()
            data_problem = self._stage.data_problem()
            if data_problem is not None:
                raise data_problem
            text = "the cluster did not come up:\n" + "\n".join(f"  {problem}" for problem in problems)
            raise StartError(text, executor_lost=any(map(names_lost_executor, problems)))
        if self._is_fed and len(self._awaited()) == len(self._monitor.roster.nodes):
            raise FeedError("the DataFrame has no rows: there is nothing to train on")  # so Spark ran no task
        if self._awaited():
            names = ", ".join(str(node.role) for node in self._awaited())
            raise StartError(f"Spark's barrier stage ended without launching {names}: see it in Spark's UI")

    def _describe_missing(self) -> str:
        waiting = [node for node in self._monitor.roster.nodes if node.state.value < NodeState.RUNNING.value]
        names = ", ".join(f"{node.role} ({_describe_missing_node(node)})" for node in waiting) or "the stage's end"
        computing = "Spark may still be computing the DataFrame (raise start_timeout), or " if self._is_fed else ""
        return (
            f"the cluster did not come up within {self._seconds:g} s (start_timeout); still waiting for "
            f"{names}: {computing}other jobs may hold the slots; see the executors and the running stages in Spark's UI"
        )


def _describe_missing_node(node: Node) -> str:
    if node.state is NodeState.AWAITED:
        return "not connected: its Spark task has not started, or can't reach the driver"
    return f"its process on {node.host} is not up"
