"""What has happened to a cluster, over all its attempts: epochs, reports and events in their order, for who follows it.

Listeners may take their time: a thread calls them.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from threading import Lock

from tensorflowonspark.driver.metrics.history import Report, Reports
from tensorflowonspark.driver.metrics.phases import Phase
from tensorflowonspark.driver.metrics.records import ClusterEvent, EpochMetrics, EventKind
from tensorflowonspark.messages import ReportedMetrics
from tensorflowonspark.terminal import CONSOLE, Writer

_log = logging.getLogger(__name__)
_EPOCHS = 20_000  # that are kept: the program may report ten in a second
_IDLE_SECONDS = 10.0  # without an event, after which the thread of the listeners ends
_FLUSH_SECONDS = 10.0  # for the listeners to handle what has happened, at the cluster's end


class MetricsListener:
    """What follows a cluster; its methods are called one after another, in a thread, and do nothing by themselves."""

    def epoch_ended(self, epoch: EpochMetrics) -> None:
        """Note that an epoch has ended."""

    def validated(self, epoch: EpochMetrics) -> None:
        """Note what an evaluator has found of an epoch."""

    def happened(self, event: ClusterEvent) -> None:
        """Note a start, failure, restart or end."""

    def attempt_began(self, began: float, facts: Mapping[str, int]) -> None:
        """Note that nodes are started, all of them, at a time in seconds since 1970."""

    def passed(self, phase: Phase) -> None:
        """Note a phase that is over."""


class EventLog:
    """Collects what happens to one cluster, and calls its listeners."""

    def __init__(self) -> None:
        self._lock = Lock()  # of the lists below
        self._epochs: deque[EpochMetrics] = deque(maxlen=_EPOCHS)
        self._total_epochs = 0
        self._events: list[ClusterEvent] = []
        self._reports = Reports()
        self._validated: set[str] = set()  # names of checkpoints
        self._early: dict[int, Mapping[str, float]] = {}  # what an evaluator has found of epochs, before their reports
        self._listeners: list[MetricsListener] = []
        self._calls = Writer(lost_seconds=math.inf, idle_seconds=_IDLE_SECONDS)

    def report(self, found: ReportedMetrics, restarts: int) -> None:
        """Note what the chief has reported, after so many restarts."""
        with self._lock:
            now = time.time()
            early = self._early.pop(found.epoch, {}) if found.ended else {}
            self._reports.add(Report(now, found.epoch, {**found.values, **early}, found.ended))
            if not found.ended:
                return
            epoch = EpochMetrics(found.epoch, now, found.seconds, dict(found.values), restarts, found.shown)
            self._epochs.append(replace(epoch, values={**epoch.values, **early}))
            self._total_epochs += 1
            self._call(lambda each: each.epoch_ended(epoch))

    def validated(self, checkpoint: str, found: ReportedMetrics, restarts: int) -> None:
        """Note what the evaluator has found of the checkpoint of an epoch, once: it belongs to that epoch's metrics."""
        with self._lock:
            if checkpoint in self._validated:
                return
            self._validated.add(checkpoint)
            epoch = EpochMetrics(found.epoch, time.time(), found.seconds, dict(found.values), restarts)
            places = [place for place, each in enumerate(self._epochs) if each.epoch == found.epoch]
            if not places:  # it has not been reported yet, or was in an earlier run
                self._early[found.epoch] = found.values
            else:
                of_epoch = self._epochs[places[-1]]
                self._epochs[places[-1]] = replace(of_epoch, values={**of_epoch.values, **found.values})
                self._reports.extend(found.epoch, found.values)
            self._call(lambda each: each.validated(epoch))

    def note(
        self, kind: EventKind, text: str, node: str | None = None, host: str | None = None, cause: str | None = None
    ) -> None:
        """Note an event."""
        with self._lock:  # so that all have the events in the order of their times
            event = ClusterEvent(time.time(), kind, text, node, host, cause)
            self._events.append(event)
            self._call(lambda each: each.happened(event))

    def attempt_began(self, facts: Mapping[str, int]) -> None:
        """Note that all nodes are started, with what is known of that."""
        began = time.time()
        self._call(lambda each: each.attempt_began(began, facts))

    def passed(self, phase: Phase) -> None:
        """Note a phase that is over."""
        self._call(lambda each: each.passed(phase))

    def subscribe(self, listener: MetricsListener) -> None:
        """Call a listener for what happens from now on."""
        with self._lock:
            self._listeners.append(listener)

    def flush(self) -> None:
        """Wait until the listeners have handled what has happened so far, at most ten seconds."""
        self._calls.drain(_FLUSH_SECONDS)

    def all(self) -> tuple[tuple[EpochMetrics, ...], tuple[ClusterEvent, ...], int]:
        """Return the epochs that have ended, the events, and how many epochs there were in all."""
        with self._lock:
            return tuple(self._epochs), tuple(self._events), self._total_epochs

    def reports(self) -> list[Report]:
        """Return the values that the chief has reported, by time; of very many only some."""
        with self._lock:
            return self._reports.all()

    def _call(self, act: Callable[[MetricsListener], None]) -> None:
        for each in self._listeners:
            self._calls.put(partial(self._try, act, each))

    def _try(self, act: Callable[[MetricsListener], None], listener: MetricsListener) -> None:
        try:
            act(listener)
        except Exception as error:  # the training goes on
            text = "%s could not handle a metric of the cluster: %s"
            CONSOLE.log(_log, logging.WARNING, text, type(listener).__name__, error)
