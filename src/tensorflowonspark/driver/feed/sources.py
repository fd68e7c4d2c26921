"""Sources of a feed's rows: Spark jobs, or the tasks that hold the nodes. Each brings parts, and knows which count.

Spark may run a task of a job twice, or a second one beside a slow one. A node keeps each attempt apart and reports it
to the driver. The job's result names exactly one attempt for each partition with rows: the one that counts. If a
process is lost, a further job sends the partitions alone that are missing then.

Spark repeats no task of a barrier stage alone, and nodes of a repeated stage are rejected. Each task that holds a node
therefore feeds once, and a part of its partition can count before the rest has arrived.
"""

import time
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from tensorflowonspark.driver.feed.contents import describe_others
from tensorflowonspark.driver.feed.feed_progress import ProgressTimeout
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.driver.sharing.manifest import node_endpoints
from tensorflowonspark.driver.spark.jobs import first_cause, not_computed
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import CacheMode, PartId, PartRef, PartSummary, Split
from tensorflowonspark.task.feeder import FeedSpec, PartitionFeeder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tensorflowonspark.driver.attempt import ClusterAttempt
    from tensorflowonspark.driver.monitor import Monitor
    from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
    from tensorflowonspark.driver.spark.jobs import Job

SplitPart = tuple[Split, PartId]
# For a node that still sends messages to report a part whose task has ended; it should have before the task ended.
_REPORT_SECONDS = 10.0


class RunningFeed(Protocol):
    """A feed as what brings its rows knows it: a `FeedSession`."""

    monitor: "Monitor"
    request: FeedRequest
    stored: dict[PartRef, PartSummary]  # the parts that the nodes have reported and keep
    timeout: ProgressTimeout  # a source restarts it when it begins to send

    @property
    def fed(self) -> list[Node]:
        """The nodes that are fed and not lost."""

    @property
    def is_over(self) -> bool:
        """Whether all programs are done with the feed."""

    def is_done(self, node: Node) -> bool:
        """Whether the program of a node is done with the feed."""

    @property
    def counted_parts(self) -> Set[PartId]:
        """The parts of which an attempt counts, if the programs take the rows as they arrive."""

    def wait(self, until: Callable[[], bool], look: Callable[[], object] = ...) -> None:
        """Wait for a condition; raise if nothing progresses, if a node fails, or what `look` raises meanwhile."""

    def raise_root_cause(self) -> None:
        """Raise the failure of a node, if there is one."""


class Source(Protocol):
    """What brings the rows of a feed."""

    job: "Job | None"  # that runs, or was the last to run

    def bring(self, data: "DataFrame | BatchRDD | None", spec: FeedSpec) -> list[PartSummary]:
        """Bring rows to the nodes; return the parts that count of all rows that the nodes keep."""

    def restore(self) -> list[PartSummary]:
        """Bring again what processes held that are lost; return the parts that count."""

    @property
    def lost(self) -> bool:
        """Whether there is something to restore."""


@dataclass
class _Load:
    """The rows that one feeding job sends: those to train on, or those to validate on."""

    data: "DataFrame | BatchRDD"
    spec: FeedSpec
    refs: dict[SplitPart, PartRef] = field(default_factory=dict)  # the parts that count
    contents: dict[SplitPart, tuple[int, int]] = field(default_factory=dict)  # their rows and checksums, at first
    processes: dict[int, int] = field(default_factory=dict)  # how often each node had been restarted when it was fed


class SparkJobs:
    """Rows that Spark jobs send.

    If nodes are started again alone, each gets the partitions again that its former process held: Spark computes these
    once more. If others go on without a lost node, they get what no node has stored when the node is lost.
    """

    def __init__(self, session: RunningFeed, attempt: "ClusterAttempt") -> None:
        self.job: Job | None = None
        self._session = session
        self._attempt = attempt
        self._monitor = session.monitor
        self._loads: list[_Load] = []  # those that are kept, and the last one

    def bring(self, data: "DataFrame | BatchRDD | None", spec: FeedSpec) -> list[PartSummary]:
        """Run the jobs that send rows; return the parts that count of all rows that the nodes keep.

        If Spark can't compute the data, or nothing progresses, it raises `FeedError`; if a node fails, `NodeError`.
        """
        assert data is not None
        load = _Load(data, spec)
        self._loads = [each for each in self._loads if each.spec.storage.keep is not CacheMode.NONE] + [load]
        self._fill(load)
        return self.restore()

    def _fill(self, load: _Load, node: Node | None = None, parts: Collection[PartId] | None = None) -> None:
        """Send some partitions to a node, or all to all; if one is lost meanwhile, again what no node has stored."""
        session, spec = self._session, load.spec
        nodes: list[Node] = []
        kept: dict[SplitPart, PartRef] = {}

        def begin() -> bool:
            """Return whether the nodes are up: then what they have is kept, and what is lost from now on counts."""
            nonlocal nodes, kept
            nodes = [each for each in ([node] if node else self._takers()) if not each.lost]
            if any(each.state.value < NodeState.RUNNING.value for each in nodes):
                return False
            renewed = nodes if load.processes else self._monitor.roster.nodes
            load.processes |= {each.number: each.restarts for each in renewed}
            kept = {} if spec.validation else self._stored(spec.split, nodes)  # a part of a partition may be missing
            return True

        while True:
            self._monitor.wait(lambda: session.is_over or begin())
            if session.is_over or not nodes or (parts is not None and not parts):
                return  # the others go on without a lost node
            had = {part for _, part in kept} | session.counted_parts

            def chosen(partition: int, had: Collection[PartId] = had) -> bool:
                part = PartId(partition, batch=spec.batch)
                return part not in had and (parts is None or part in parts)

            session.timeout.restart()
            job = self._submit(load, nodes, chosen if had or parts else None)
            session.wait(lambda job=job: job.ended or session.is_over or self._has_lost(load, nodes))  # type: ignore[misc]
            refs = self._result(job, load, nodes)
            if refs is not None:
                load.refs |= kept | {(ref.split, ref.part): ref for ref in refs}
                return
            job.cancel()  # its tasks may wait for a host that is gone

    def _takers(self) -> list[Node]:
        """Return the nodes that take rows: independent workers may return while others still read."""
        return [node for node in self._session.fed if not node.program.returned] or self._session.fed

    def _stored(self, split: Split, nodes: Sequence[Node]) -> dict[SplitPart, PartRef]:
        numbers = {node.number for node in nodes}
        refs = [ref for ref in self._session.stored if ref.number in numbers and ref.split is split]
        return {(ref.split, ref.part): ref for ref in refs}

    def _submit(self, load: _Load, nodes: Sequence[Node], chosen: Callable[[int], bool] | None) -> "Job":
        attempt, spec = self._attempt, load.spec
        feeder = PartitionFeeder(node_endpoints(nodes, attempt.address), attempt.credentials, spec)
        rows = "" if spec.split is Split.TRAIN else f", {spec.split.value} rows,"
        nodes_text = f"{len(nodes)} nodes" if len(nodes) > 1 else str(nodes[0].role)
        description = attempt.describe_job(f"feed {spec.feed}{rows} to {nodes_text}")
        wake = self._monitor.inbox.wake
        self.job = attempt.job = attempt.backend.submit(feeder, load.data, description, wake, chosen)
        return self.job

    def _result(self, job: "Job", load: _Load, nodes: Sequence[Node]) -> list[PartRef] | None:
        """Return the parts that count, from the result of a job; None if a node that it feeds is lost."""
        if self._has_lost(load, nodes):
            return None
        if self._session.is_over:
            return []  # the programs were done before all rows arrived
        if job.error is not None:
            self._session.raise_root_cause()
            if self._has_lost(load, nodes):
                return None
            raise not_computed(first_cause(job.error)) from job.error
        batch = load.spec.batch
        return [
            PartRef(Split(row.split), PartId(row.partition, batch=batch), row.attempt, row.node, row.checksum)
            for row in job.result
        ]

    def _has_lost(self, load: _Load, nodes: Sequence[Node]) -> bool:
        """Whether the process of one of these nodes is lost since they were fed."""
        return any(node.lost or load.processes[node.number] != node.restarts for node in nodes)

    # ---- what was lost

    def restore(self) -> list[PartSummary]:
        """Send again what processes held that are lost; return the parts that count, once the nodes have them all."""
        session = self._session
        while not session.is_over:
            for load in self._loads:
                self._refill(load)
            refs = [ref for load in self._loads for ref in load.refs.values()]
            _wait_for_reports(session, refs, lambda: self.lost)
            with self._monitor.lock:
                if not self.lost:
                    self._check_rows()
                    return _summaries(session, refs)
        return []

    @property
    def lost(self) -> bool:
        """Whether a process is lost that was fed, and another one takes its place."""
        return any(self._renewed(load) for load in self._loads)

    def _renewed(self, load: _Load) -> list[Node]:
        """Return the nodes that need rows again; one whose program was done with the feed does not."""
        nodes = self._monitor.roster.nodes
        renewed = [nodes[number] for number, restarts in load.processes.items() if nodes[number].restarts != restarts]
        return [node for node in renewed if not (node.lost or self._session.is_done(node))]

    def _refill(self, load: _Load) -> None:
        for node in self._renewed(load):
            with self._monitor.lock:
                keys = [key for key, ref in load.refs.items() if ref.number == node.number]
                for key in keys:
                    del load.refs[key]
            self._fill(load, node, {part for _, part in keys})

    def _check_rows(self) -> None:
        """Raise if Spark has computed other rows for a partition than before."""
        stored = self._session.stored
        for load in self._loads:
            counted = {key: (stored[ref].rows, ref.checksum) for key, ref in load.refs.items() if ref in stored}
            load.contents = counted | load.contents
            for (split, part), had in load.contents.items():
                ref = load.refs.get((split, part))
                node = None if ref is None else self._monitor.roster.nodes[ref.number]
                if node is not None and (node.lost or self._session.is_done(node)):
                    continue
                now = counted.get((split, part), (0, 0))
                if now != had:
                    others = describe_others(had, now)
                    raise FeedError(
                        f"partition {part.partition} had {had[0]:,} rows when it was fed first, and {others} when "
                        "Spark computed it again for a node that was started again: cache() the DataFrame, or write it "
                        "to files and feed these"
                    )


class HeldTasks:
    """Rows that the tasks which hold the nodes send, each its own partition to its node.

    The session is created before the nodes start.
    """

    job: "Job | None" = None
    lost = False

    def __init__(self, session: RunningFeed) -> None:
        self._session = session

    def bring(self, _data: "DataFrame | BatchRDD | None", _spec: FeedSpec) -> list[PartSummary]:
        """Wait until all tasks have fed their nodes, or the feed is over; return the parts that count.

        A task that could not feed its node is a `FeedError`, a node that fails a `NodeError`.
        """
        session = self._session

        def failures() -> list[str]:
            return [node.feed.failed for node in session.fed if node.feed.failed]

        def over() -> bool:
            return session.request.starts_early and session.is_over

        session.wait(lambda: bool(failures()) or all(node.feed.parts is not None for node in session.fed) or over())
        if failures() and not over():
            session.raise_root_cause()
            raise not_computed(failures()[0])
        return self.restore()

    def restore(self) -> list[PartSummary]:
        """Return the parts that count, once the nodes have reported them."""
        session = self._session
        refs = [ref for node in session.fed for ref in node.feed.parts or ()]
        _wait_for_reports(session, refs)
        return _summaries(session, refs)


def _summaries(session: RunningFeed, refs: Sequence[PartRef]) -> list[PartSummary]:
    """Return what the nodes have reported of parts that tasks have sent."""
    return [session.stored[ref].sent_as(ref) for ref in refs if ref in session.stored]


def _wait_for_reports(session: RunningFeed, refs: Sequence[PartRef], until: Callable[[], bool] = lambda: False) -> None:
    """Wait until the nodes have reported parts that tasks have sent, the feed is over, or another condition holds.

    The job's result and the reports take different paths, and either may be first. A node that is lost reports nothing
    more, nor does one that takes no more rows as they arrive.

    A node that still sends messages and does not report its part is a `FeedError`.
    """
    early, nodes = session.request.starts_early, session.monitor.roster.nodes
    fewest, since = 0, 0.0

    def is_absent(ref: PartRef) -> bool:
        if nodes[ref.number].lost or (early and session.is_done(nodes[ref.number])):
            return False
        if early and ref.split is Split.TRAIN:
            return ref.part not in session.counted_parts
        return ref not in session.stored

    def find_astray() -> None:
        nonlocal fewest, since
        absent = [ref for ref in refs if is_absent(ref)]
        if len(absent) != fewest:
            fewest, since = len(absent), time.monotonic()
        for ref in absent:
            if nodes[ref.number].process.last_message > since + _REPORT_SECONDS:
                raise FeedError(_astray(session, ref, len(absent)))

    session.wait(lambda: session.is_over or until() or not any(map(is_absent, refs)), find_astray)


def _astray(session: RunningFeed, ref: PartRef, parts: int) -> str:
    """Return the error of a part that its node does not report."""
    nodes = session.monitor.roster.nodes
    node = nodes[ref.number]
    has = next((nodes[each.number] for each in session.stored if replace(each, number=ref.number) == ref), None)
    found = f"{has.role} on {has.host} reports them" if has else "no other node reports them"
    return (
        f"partition {ref.part.partition}: its task has sent the rows to {node.role} on {node.host}, "
        f"which does not report them, and {found} (missing parts: {parts}). See whether what is between the executors "
        "(a proxy, NAT) exchanges their addresses, and feed the rows again"
    )
