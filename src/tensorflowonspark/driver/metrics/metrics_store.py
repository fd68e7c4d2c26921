"""The metrics of one cluster, over all its attempts: collected from its nodes' messages, sampled once a second.

Messages are handled in the thread of each node's channel, and change only what belongs to that node. One thread samples
all nodes for the curves.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Literal, TypeVar

from tensorflowonspark.config import Job
from tensorflowonspark.driver.metrics.event_log import EventLog
from tensorflowonspark.driver.metrics.goodput import GoodputLedger
from tensorflowonspark.driver.metrics.history import History
from tensorflowonspark.driver.metrics.measures import CURVES
from tensorflowonspark.driver.metrics.node_record import NodeRecord, stragglers
from tensorflowonspark.driver.metrics.phases import TrainingPhases
from tensorflowonspark.driver.metrics.records import ClusterMetrics, Goodput, NodeMetrics
from tensorflowonspark.driver.metrics.run_clock import RunClock
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.messages import Evaluation, NodeUsage, TrainingTotals
from tensorflowonspark.run_manifest import Record

_log = logging.getLogger(__name__)

Number = TypeVar("Number", int, float)


def _sum(values: Iterable[Number | None]) -> Number | None:
    """Return the sum of what is known; None if nothing is."""
    known = [each for each in values if each is not None]
    return sum(known[1:], known[0]) if known else None


class MetricsStore:
    """Collects the metrics of one cluster; the `clock` is that of its time, by default the machine's."""

    def __init__(self, name: str = "", clock: RunClock | None = None) -> None:
        self.name = name
        self.state: Literal["new", "running", "ended", "failed"] = "new"
        self.cluster = ""
        self.restarts = 0
        self.validation: dict[str, list[float]] = {}  # as of `ClusterMetrics`
        self.sources: dict[str, int] = {}  # likewise
        self.manifest: Record = {}  # as the chief knows it, or before that the driver
        self._advice: Callable[[], str | None] = lambda: None
        self._nodes: Sequence[Node] = ()
        self._chief = 0
        self._records: defaultdict[int, NodeRecord] = defaultdict(NodeRecord)  # by node
        self.events = EventLog()
        self._ledger = GoodputLedger()
        self._phases = TrainingPhases()  # of the chief, in this attempt
        self._history = History(tuple(CURVES))
        self._clock = clock or RunClock()

    # ---- from the driver's other parts

    def begin_attempt(
        self, cluster: str, nodes: Sequence[Node], chief: int, restarts: int, advice: Callable[[], str | None]
    ) -> None:
        """Collect from the nodes of a new attempt.

        `cluster` is its id, `chief` the number of the node that has the chief's duties; `advice` returns what bounds
        the training at present, if that is certain.
        """
        records: defaultdict[int, NodeRecord] = defaultdict(NodeRecord)
        for node in nodes:
            before = self._records[node.number]
            records[node.number] = NodeRecord(history=before.history, lines=before.lines)
        self.cluster, self._nodes, self._chief, self.restarts = cluster, nodes, chief, restarts
        self._records, self._advice = records, advice
        self.state = "running"
        self._phases = TrainingPhases()
        jobs = [node.role.job for node in nodes]
        workers = jobs.count(Job.CHIEF) + jobs.count(Job.WORKER)
        self.events.attempt_began({"attempt": restarts, "workers": workers, "ps": jobs.count(Job.PS)})
        self._ledger.begin_attempt(nodes, chief, self._clock.now())
        self._clock.begin(self._add_sample)

    def take_usage(self, node: Node, usage: NodeUsage) -> None:
        """Note what the processes of a node use."""
        self._records[node.number].take_usage(usage)

    def take_totals(self, node: Node, totals: TrainingTotals) -> None:
        """Note what a node's program has done so far; the metrics of the chief are the cluster's."""
        now = self._clock.now()
        self._records[node.number].take_totals(totals, now)
        self._ledger.take_totals(node.number, totals, now)
        if node.number == self._chief:
            for phase in self._phases.take(totals, node.program.begun_at):
                self.events.passed(phase)
            for each in totals.metrics:
                self.events.report(each, self.restarts)

    def take_evaluation(self, evaluation: Evaluation) -> None:
        """Note what the evaluator has found so far."""
        self.validation = evaluation.history or self.validation
        if evaluation.metrics is not None:
            self.events.validated(evaluation.checkpoint, evaluation.metrics, self.restarts)

    def retire(self, node: Node) -> None:
        """Note that a node's process is over, in whose place another one is started."""
        self._ledger.retire(node, self._clock.now())

    def take_lines(self, node: Node, lines: Sequence[str]) -> None:
        """Keep the last lines of a node's output."""
        self._records[node.number].lines.extend(lines)

    def fail(self) -> None:
        """Show the cluster as failed from now on, unless it is started again."""
        self.state = "failed"

    def end(self, *, failed: bool, text: str) -> None:
        """Note the end of the cluster; return when the listeners have handled it, or after ten seconds."""
        if not self._clock.end():
            return
        self.state = "failed" if failed else "ended"
        if self._nodes:
            self._add_sample()
        self.events.note("ended", text)
        self.events.flush()

    # ---- reading

    def snapshot(self) -> ClusterMetrics:
        """Return the present state."""
        nodes = self._node_metrics()
        epochs, events, total_epochs = self.events.all()
        steps = [each.seconds_per_step for each in nodes if each.seconds_per_step is not None]
        return ClusterMetrics(
            cluster=self.cluster,
            name=self.name,
            state=self.state,
            time=time.time(),
            restarts=self.restarts,
            rows=_sum(each.rows for each in nodes),
            bytes=_sum(each.bytes for each in nodes),
            rows_per_second=_sum(each.rows_per_second for each in nodes),
            seconds_per_step=median(steps) if steps else None,
            nodes=nodes,
            epochs=epochs,
            events=events,
            advice=self._advice(),
            total_epochs=total_epochs,
            seconds=self._clock.seconds,
            goodput=self.goodput(),
            validation=self.validation,
            sources=self.sources,
        )

    def goodput(self) -> Goodput | None:
        """Return what became of the nodes' time so far; None before the start."""
        return self._ledger.read(self._clock.now())

    def series(self, number: int | None = None) -> dict[str, list[float | None]]:
        """Return the curves of a node, or of the cluster: ``time`` and each of `CURVES`."""
        return (self._history if number is None else self._records[number].history).columns()

    def lines(self, number: int) -> list[str]:
        """Return the last lines of a node's output."""
        return list(self._records[number].lines)

    def record(self, number: int) -> NodeRecord:
        """Return what is known of a node."""
        return self._records[number]

    def end_training(self) -> None:
        """Note that a training has ended: the next one is measured for itself."""
        for record in list(self._records.values()):
            record.first = None

    def _node_metrics(self) -> tuple[NodeMetrics, ...]:
        now = self._clock.now()
        nodes = [self._records[node.number].metrics(node, now) for node in self._nodes]
        behind = stragglers(nodes)
        return tuple(replace(each, straggler=True) if each.number in behind else each for each in nodes)

    # ---- in the clock's thread

    def _add_sample(self) -> None:
        now, monotonic = time.time(), self._clock.now()
        of_nodes = []
        for node in self._nodes:
            record = self._records[node.number]
            if node.state in (NodeState.GONE, NodeState.FAILED):
                continue
            sample = record.sample(monotonic)
            record.history.add(now, sample)
            of_nodes.append(sample)
        total: dict[str, float | None] = {}
        for name, how in CURVES.items():
            known = [value for each in of_nodes if (value := each.get(name)) is not None]
            total[name] = (sum(known) if how == "sum" else fmean(known)) if known else None
        self._history.add(now, total)
