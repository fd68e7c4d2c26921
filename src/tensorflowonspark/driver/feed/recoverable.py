"""A cached feed of nodes that are started again alone: each gets the rows again that its former process held."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.feed.session import CompleteFeed, FeedSession
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import PartRef, PartSummary, Split
from tensorflowonspark.messages import Failed
from tensorflowonspark.task.feeder import FeedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tensorflowonspark.driver.spark.jobs import RunningJob

__all__ = ["RecoverableFeed"]

PartKey = tuple[Split, int]  # and the partition


@dataclass
class _Load:
    """The rows that one feeding job sends: those to train on, or those to validate on."""

    data: "DataFrame"
    spec: FeedSpec
    refs: dict[PartKey, PartRef] = field(default_factory=dict)  # the parts that count
    lost: set[int] = field(default_factory=set)  # nodes whose processes were lost since they were fed


class RecoverableFeed(CompleteFeed):
    """Rows that the nodes keep; a node that is started again is sent those of the partitions that it has held.

    Spark computes these partitions once more. No rows move between nodes, so that the others are not concerned.

    Parameters
    ----------
    session : FeedSession
        The session that it belongs to.
    """

    def __init__(self, session: FeedSession) -> None:
        super().__init__(session)
        self._monitor = session.monitor
        self._loads: list[_Load] = []
        self._had: dict[PartKey, tuple[int, int]] = {}  # the rows and the checksum of parts that were lost
        self._informed: dict[int, int] = {}  # nodes that know what they hold, and how often they had been restarted

    def feed(self, data: "DataFrame | None") -> None:
        """Run the jobs and complete the feed, also for nodes that are started again, until the programs are done."""
        assert data is not None
        session, monitor = self._session, self._monitor
        self.gather(data, session.training_spec)
        while not session.is_over:
            self._inform(self._restore(self._loads))
            monitor.wait(lambda: session.is_over or bool(self._uninformed()))

    def gather(self, data: "DataFrame", spec: FeedSpec) -> list[PartSummary]:
        """Run the job, and others for what is lost meanwhile; return what the nodes have stored."""
        load = _Load(data, spec)
        with self._monitor.lock:
            self._loads.append(load)
        self._fill(load, self._session.fed)
        return self._restore([load])

    def on_message(self, node: Node, message: Any) -> None:
        """Note which parts are lost with a process."""
        if not (isinstance(message, Failed) and (node.lost or node.state is NodeState.RESTARTING)):
            return
        stored = self._session.stored
        for ref in [ref for ref in stored if ref.number == node.number]:
            part = stored.pop(ref)
            if any(load.refs.get((ref.split, ref.partition)) == ref for load in self._loads):
                checksum = self._session.checksum(ref.split, ref.partition)
                self._had[ref.split, ref.partition] = part.rows, checksum
        for load in self._loads:
            load.lost.add(node.number)

    # ---- feeding

    def _fill(self, load: _Load, nodes: Sequence[Node], partitions: Collection[int] | None = None) -> None:
        """Feed some partitions, or all, to nodes; repeat that for those that no node has if one of them is lost."""
        session, monitor = self._session, self._monitor
        numbers = {node.number for node in nodes}
        kept: dict[PartKey, PartRef] = {}

        def begin() -> bool:
            """Return whether all are up; then what they have is kept, and what is lost from now on counts."""
            if any(node.state.value < NodeState.RUNNING.value for node in nodes if not node.lost):
                return False
            load.lost -= numbers
            kept.clear()
            if not load.spec.validation:  # else a part of a partition may be missing
                stored = [ref for ref in session.stored if ref.number in numbers and ref.split is load.spec.split]
                kept.update({(ref.split, ref.partition): ref for ref in stored})
            return True

        while True:
            monitor.wait(lambda: session.is_over or begin())
            if session.is_over or (partitions is not None and not partitions):
                return
            had = {partition for _, partition in kept}

            def chosen(partition: int, had: Collection[int] = frozenset(had)) -> bool:
                return partition not in had and (partitions is None or partition in partitions)

            session.timeout.restart()
            present = [node for node in nodes if not node.lost]
            if not present:
                return  # the others go on without
            job = session.submit(load.data, load.spec, present, chosen)
            session.wait(lambda job=job: job.ended or session.is_over or bool(load.lost & numbers))  # type: ignore[misc]
            refs = self._result(job, load, numbers)
            if refs is not None:
                load.refs |= kept | {(ref.split, ref.partition): ref for ref in refs}
                return
            job.cancel()  # its tasks may wait for a host that is gone

    def _result(self, job: "RunningJob", load: _Load, numbers: set[int]) -> list[PartRef] | None:
        """Return the parts that count of a job's; None if a node that it feeds is lost."""
        try:
            refs = [] if load.lost & numbers else self._session.accepted(job)
        except FeedError:
            if not load.lost & numbers:
                raise
            return None
        return None if load.lost & numbers else refs

    def _restore(self, loads: Sequence[_Load]) -> list[PartSummary]:
        """Feed again what is lost; return what the nodes have, which is then all of some loads."""
        session = self._session
        while not session.is_over:
            for load in loads:
                self._refill(load)
            refs = [ref for load in loads for ref in load.refs.values()]
            session.wait_for_parts(partial(session.unreported, refs), lambda: bool(self._lost(loads)))
            with self._monitor.lock:
                if not self._lost(loads):
                    self._check_rows(loads)
                    return [session.stored[ref] for ref in refs if ref in session.stored]
        return []

    def _lost(self, loads: Sequence[_Load]) -> set[int]:
        """Return the nodes that need rows again; one whose program was done with the feed does not."""
        nodes = [self._monitor.nodes[number] for number in {number for load in loads for number in load.lost}]
        return {node.number for node in nodes if not (node.lost or self._session.is_done(node))}

    def _refill(self, load: _Load) -> None:
        for number in sorted(self._lost([load])):
            with self._monitor.lock:
                keys = [key for key, ref in load.refs.items() if ref.number == number]
                for key in keys:
                    del load.refs[key]
            self._fill(load, [self._monitor.nodes[number]], {partition for _, partition in keys})

    def _check_rows(self, loads: Sequence[_Load]) -> None:
        """Raise if Spark has computed other rows for a partition than before."""
        for load in loads:
            for (split, partition), (rows, checksum) in self._had.items():
                ref = load.refs.get((split, partition))
                if ref is not None and self._monitor.nodes[ref.number].lost:
                    continue
                now = self._session.stored[ref].rows if ref in self._session.stored else 0
                differs = (now, self._session.checksum(split, partition)) != (rows, checksum)
                if (split is load.spec.split or load.spec.validation) and differs:
                    other = f"{now:,}" if now != rows else "others, or the same in another order,"
                    raise FeedError(
                        f"partition {partition} had {rows:,} rows when it was fed first, and {other} when Spark "
                        "computed it again for a node that was started again: cache() the DataFrame, or write it to "
                        "files and feed these"
                    )

    def _uninformed(self) -> set[int]:
        """Return the nodes whose present processes do not know yet what they hold."""
        nodes = [node for node in self._monitor.nodes if not self._session.is_done(node)]
        readers = {node.number for node in self._session.readers}
        return {
            each.number for each in nodes if each.number in readers and self._informed.get(each.number) != each.restarts
        }

    def _inform(self, parts: Sequence[PartSummary]) -> None:
        """Complete the feed for the nodes that do not know yet what they hold."""
        session, monitor = self._session, self._monitor
        with monitor.lock:
            if session.is_over or self._lost(self._loads):
                return
            numbers = self._uninformed()
            if len(self._loads) > 1:
                session.validation = session.manifests(parts, Split.VALIDATION)
            session.complete(parts, numbers if self._informed else None)
            self._informed.update({number: monitor.nodes[number].restarts for number in numbers})
