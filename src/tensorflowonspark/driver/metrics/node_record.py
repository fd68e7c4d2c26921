"""What the driver knows of one node: its last measurements, and the rates between them."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tensorflowonspark.driver.metrics.history import History
from tensorflowonspark.driver.metrics.measures import CURVES, RATES, of_gpus
from tensorflowonspark.driver.metrics.records import NodeMetrics
from tensorflowonspark.driver.nodes import Node, NodeState
from tensorflowonspark.messages import NodeUsage, TrainingTotals

_SUMMED = ("time", "total_steps", "training", "reading", "processor", "queued")  # of a training, since its begin
_WINDOW_SECONDS = 0.9  # at least, between two totals of which rates are made
_WINDOWS = 8  # of which the present state is the mean: a single one is unsteady
_STALE_SECONDS = 12.0  # after which what a node sent is no longer its present state
_LINES = 50  # of each node's output
_STRAGGLER_WAIT = 0.15  # share of the time that the other workers lose to one, from which on it is marked
_STRAGGLER_SHARE = 0.5  # of their wait, below which its own is
_STRAGGLER_STEP = 1.5  # times the others' seconds per step, where none waits for another


@dataclass
class NodeRecord:
    """What is known of one node."""

    usage: NodeUsage | None = None
    cores: float | None = None
    totals: TrainingTotals | None = None
    arrived: float = 0.0  # time (time.monotonic) of the totals' arrival
    windows: deque[TrainingTotals] = field(default_factory=lambda: deque(maxlen=_WINDOWS))  # the totals between rates
    rates: dict[str, float | None] = field(default_factory=dict)
    steady: dict[str, float | None] = field(default_factory=dict)  # rates over all windows
    first: TrainingTotals | None = None  # of the training: those before its step was traced do not count
    values: Mapping[str, float] = field(default_factory=dict)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES))
    history: History = field(default_factory=lambda: History(tuple(CURVES)))

    def take_usage(self, usage: NodeUsage) -> None:
        """Note what the node's processes use."""
        before, self.usage = self.usage, usage
        if before is None or before.processor > usage.processor or before.time > usage.time:
            self.cores = None  # another process, or a child of it that has ended
        elif usage.time > before.time:
            self.cores = (usage.processor - before.processor) / (usage.time - before.time)

    def take_totals(self, totals: TrainingTotals, now: float) -> None:
        """Note what the node's program has done so far, which arrived at a time (time.monotonic)."""
        last = self.windows[-1] if self.windows else None
        self.totals, self.arrived = totals, now
        if self.first is None or self.first.total_steps > totals.total_steps:  # the latter of another process
            self.first = totals if totals.traced else None
        for each in totals.metrics:
            self.values = {**self.values, **each.values}
        if last is None or last.time > totals.time or last.total_steps > totals.total_steps:
            self.windows.clear()
            self.windows.append(totals)
            self.rates = self.steady = {}
        elif totals.time - last.time >= _WINDOW_SECONDS:
            self.rates, self.steady = _rates_between(last, totals), _rates_between(self.windows[0], totals)
            self.windows.append(totals)

    @property
    def training(self) -> TrainingTotals | None:
        """What the program has done in its training, without what came before; None if it has not trained."""
        first, last = self.first, self.totals
        if first is None or last is None:
            return None
        return replace(last, **{name: getattr(last, name) - getattr(first, name) for name in _SUMMED})

    @property
    def waiting_share(self) -> float | None:
        """The share of the training for which the node has waited for other workers, where that is known."""
        rates = {} if self.first is None or self.totals is None else _rates_between(self.first, self.totals)
        return rates.get("waiting_for_workers")

    def present(self, name: str, now: float, *, steady: bool = False) -> float | None:
        """Return a rate of the last window or of all, unless it is out of date."""
        rates = self.steady if steady else self.rates
        return rates.get(name) if now - self.arrived < _STALE_SECONDS else None

    def metrics(self, node: Node, now: float) -> NodeMetrics:
        """Return what is known of the node at a time (time.monotonic)."""
        usage, totals = self.usage, self.totals or _NO_TOTALS
        where = totals.progress or totals
        rates: Mapping[str, Any]
        if node.state is NodeState.RUNNING:
            rates = {name: self.present(name, now, steady=True) for name in RATES}
        else:  # those of the whole training
            rates = _rates_between(_NO_TOTALS, totals)
        return NodeMetrics(
            number=node.number,
            name=str(node.role),
            host=node.member.host if node.member else None,
            state=node.shown_state.name.lower(),
            restarts=node.restarts,
            epoch=where.epoch,
            step=None if where.epoch is None else where.step,
            steps=where.steps or None,
            rows=totals.rows,
            bytes=totals.bytes,
            total_steps=totals.total_steps,
            **rates,
            cores=self.cores if node.state is NodeState.RUNNING else None,
            memory=usage.memory if usage else None,
            gpus=usage.gpus if usage else (),
            values=self.values,
        )

    def sample(self, now: float) -> dict[str, float | None]:
        """Return the values of its curves at a time (time.monotonic)."""
        usage = self.usage
        return {
            **{name: self.present(name, now) for name in RATES},
            "cores": self.cores,
            "memory": usage.memory if usage else None,
            **of_gpus(usage.gpus if usage else ()),
        }


def _rates_between(first: TrainingTotals, last: TrainingTotals) -> dict[str, float | None]:
    """Return the rates between two totals; none if the program did not train, but evaluated or saved a checkpoint."""
    seconds, steps = last.training - first.training, last.total_steps - first.total_steps
    if seconds <= 0:
        return {}
    waits = {
        name: _share(getattr(first, name), getattr(last, name), seconds)
        for name in ("waiting_for_rows", "waiting_for_workers")
    }
    return {
        "rows_per_second": None if last.rows is None else (last.rows - (first.rows or 0)) / seconds,
        "seconds_per_step": seconds / steps if steps else None,
        **waits,
        "computing": None if None in waits.values() else max(0.0, 1.0 - sum(each or 0.0 for each in waits.values())),
    }


_NO_TOTALS = TrainingTotals(waiting_for_rows=0.0, waiting_for_workers=0.0)


def _share(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else min(1.0, max(0.0, (after - before) / seconds))


def stragglers(nodes: Sequence[NodeMetrics]) -> set[int]:
    """Return the numbers of the nodes for which the others wait, or that are much slower where none waits.

    In training in step, all workers take the same time for a step; the one that the others wait for waits the least.
    """
    waits = {each.number: each.waiting_for_workers for each in nodes if each.waiting_for_workers is not None}
    if len(waits) > 1:
        found = set()
        ordered = sorted(waits.values())
        for number, wait in waits.items():
            others = _median_without(ordered, wait)
            if others >= _STRAGGLER_WAIT and wait < _STRAGGLER_SHARE * others:
                found.add(number)
        return found
    paces = {each.number: each.seconds_per_step for each in nodes if each.seconds_per_step is not None}
    ordered = sorted(paces.values())
    return {
        number
        for number, pace in paces.items()
        if len(paces) > 1 and pace > _STRAGGLER_STEP * _median_without(ordered, pace)
    }


def _median_without(ordered: Sequence[float], one: float) -> float:
    """Return the median of sorted numbers but for one of them; a new sort for each would take seconds with many."""
    place, last = bisect_left(ordered, one), len(ordered) - 2
    low, high = (each if each < place else each + 1 for each in (last // 2, (last + 1) // 2))
    return (ordered[low] + ordered[high]) / 2
