"""Goodput: which seconds of the nodes that train went to steps that count, and what became of the others.

Times are of time.monotonic in the driver; what happens within a program, its node has measured.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tensorflowonspark.config import Job
from tensorflowonspark.driver.metrics.records import Goodput
from tensorflowonspark.driver.nodes import Node
from tensorflowonspark.messages import TrainingTotals

CAUSES = (
    *("start", "importing", "waiting_for_rows", "waiting_for_workers", "saving", "validating", "repeated_steps"),
    *("idle", "shutdown", "other"),
)
_STEPS = "steps"


class _Life:
    """The time of one process of a node, from when its slot began to wait for it."""

    def __init__(self, node: Node, since: float, before: float = 0.0) -> None:
        self.node = node
        self.before = before  # seconds of the steps of the node's former processes in this attempt
        self.trained_at: float | None = None
        self._since = since
        self._totals = TrainingTotals()
        self._fed = 0.0  # seconds for which it had waited for a feed when it began to train

    def take(self, totals: TrainingTotals, now: float) -> None:
        if self.trained_at is None and totals.training > 0:
            self.trained_at = now - totals.training - totals.saving - totals.validating
            self._fed = totals.waiting_for_feed
        self._totals = totals

    @property
    def waited(self) -> float | None:
        """The seconds for which it has waited for other workers; None if that is not known."""
        return self._totals.waiting_for_workers

    @property
    def steps(self) -> float:
        """The seconds in which it took steps, with its waits for others, and with those of the processes before."""
        return self.before + max(0.0, self._totals.training - (self._totals.waiting_for_rows or 0.0))

    def end(self, until: float) -> float:
        """Return when it ended, or a given time before that."""
        ended = self.node.program.ended_at
        return max(self._since, until if ended is None else min(ended, until))

    def seconds(self, until: float, exchange: float | None = None) -> dict[str, float]:
        """Return what its time until its end, or until a time before, was.

        So many seconds of its waits for other workers are the exchange with them, which is a part of the steps; None:
        all.
        """
        totals, end = self._totals, self.end(until)
        known = [each for each in (self.trained_at, self.node.program.begun_at) if each is not None]
        start = max(0.0, min(end, known[0] if known else end) - self._since - self._fed)
        importing = min(start, totals.importing) if self.trained_at is not None else 0.0
        steps = self.steps - self.before
        waited = 0.0 if exchange is None else min(steps, max(0.0, (self.waited or 0.0) - exchange))
        measured = {
            _STEPS: steps - waited,
            "waiting_for_rows": totals.waiting_for_feed + (totals.waiting_for_rows or 0.0),
            "waiting_for_workers": waited,
            "saving": totals.saving,
            "validating": totals.validating,
        }
        left, known_seconds = end - self._since - start, sum(measured.values())
        scale = min(1.0, left / known_seconds) if known_seconds else 0.0  # the node's clock is another one
        found = {cause: scale * each for cause, each in measured.items()}
        return {"start": start - importing, "importing": importing, **found, "other": max(0.0, left - known_seconds)}


class _Attempt:
    """The time of the nodes that train in one attempt, and the checkpoints at which the next one can resume."""

    def __init__(self, nodes: Iterable[Node], chief: int, now: float) -> None:
        self._lives = {each.number: _Life(each, now) for each in nodes if each.role.job in (Job.CHIEF, Job.WORKER)}
        self._chief = chief
        self._former: defaultdict[str, float] = defaultdict(float)  # of processes that others have replaced
        self._saved: dict[int, float] = {}  # by the step of a checkpoint: the seconds of the chief's steps before it
        self.resumed: int | None = None  # the step at which its training begins; None: unknown
        self.closed: Mapping[str, float] | None = None  # its seconds, once the next one has begun

    def take_totals(self, number: int, totals: TrainingTotals, now: float) -> None:
        life = self._lives.get(number)
        if life is None:
            return
        began = life.trained_at is None
        life.take(totals, now)
        if number != self._chief:
            return
        if began and life.trained_at is not None and self.resumed is None:
            anew = None if totals.epoch else 0  # a later epoch is one at which the program resumes by itself
            self.resumed = anew if totals.restored is None else totals.restored
        if totals.saved is not None:
            self._saved.setdefault(totals.saved, life.steps)

    def retire(self, node: Node, now: float) -> None:
        life = self._lives.get(node.number)
        if life is not None:
            for cause, seconds in life.seconds(now).items():
                self._former[cause] += seconds
            self._lives[node.number] = _Life(node, now, life.steps)

    def seconds(self, until: float, last: str) -> Mapping[str, float]:
        """Return what the time until then was; the time after the end of all programs is `last`."""
        lives = [each for each in self._lives.values() if not each.node.program.serving]  # whose steps nobody counts
        over = all(each.node.program.ended_at is not None for each in lives)
        ended = max((each.end(until) for each in lives), default=until) if over else until
        found = defaultdict(float, self._former)
        # The worker for which the others wait itself waits for nothing but the exchange with them. What those that were
        # replaced have waited is not known.
        waits = [each.waited for each in lives]
        known = [each for each in waits if each is not None]
        exchange = min(known) if known and len(known) == len(waits) and not self._former else None
        for each in lives:
            for cause, seconds in each.seconds(until, exchange).items():
                found[cause] += seconds
            found["idle"] += ended - each.end(until)
            found[last] += until - ended
        return found

    def begins_at(self, step: int) -> bool:
        """Whether a training that resumes at a step takes only steps of this attempt again."""
        return step in self._saved or step == self.resumed

    def share_after(self, step: int) -> float:
        """Return the share of its steps that a training takes again which resumes at a step."""
        steps = self._lives[self._chief].steps
        return max(0.0, 1.0 - self._saved.get(step, 0.0) / steps) if steps else 0.0


class GoodputLedger:
    """The account of one cluster, over all its attempts."""

    def __init__(self) -> None:
        self._attempts: list[_Attempt] = []

    def begin_attempt(self, nodes: Iterable[Node], chief: int, now: float) -> None:
        """Account for the nodes of a new attempt from now on."""
        if self._attempts:
            self._attempts[-1].closed = self._attempts[-1].seconds(now, "start")
        self._attempts.append(_Attempt(nodes, chief, now))

    def take_totals(self, number: int, totals: TrainingTotals, now: float) -> None:
        """Note what a node's program has done so far."""
        for attempt in self._attempts[-1:]:
            attempt.take_totals(number, totals, now)

    def retire(self, node: Node, now: float) -> None:
        """Note that a node's process is over, in whose place another one is started: what it has taught is kept."""
        for attempt in self._attempts[-1:]:
            attempt.retire(node, now)

    def read(self, now: float) -> Goodput | None:
        """Return what became of the time until now; None if there was none."""
        total = dict.fromkeys((_STEPS, *CAUSES), 0.0)
        resumed: int | None = None  # the step at which the attempts after an attempt have resumed
        for attempt in reversed(self._attempts):
            found = dict(attempt.closed or attempt.seconds(now, "shutdown"))
            if resumed is not None:
                found["repeated_steps"] = found[_STEPS] * attempt.share_after(resumed)
                found[_STEPS] -= found["repeated_steps"]
            if resumed is None or attempt.begins_at(resumed):
                resumed = attempt.resumed
            for cause, seconds in found.items():
                total[cause] += seconds
        whole = sum(total.values())
        if whole <= 0:
            return None
        shares = {cause: seconds / whole for cause, seconds in total.items()}
        return Goodput(shares.pop(_STEPS), shares)
