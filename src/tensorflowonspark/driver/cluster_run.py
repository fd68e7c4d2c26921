"""The run of a cluster over all its attempts: when a node fails, all nodes start again and are fed what they need.

The programs of a new attempt begin anew, and are fed again what they need (`driver/feed/history.py`). Then the driver
repeats the action that the failure interrupted.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from threading import Event
from typing import TypeVar

from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.advice import feeding_advice
from tensorflowonspark.driver.attaching import AttachServer
from tensorflowonspark.driver.attempt import ClusterAttempt
from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.dashboard.service import DashboardService, require_packages
from tensorflowonspark.driver.decision import may_be_preemption
from tensorflowonspark.driver.feed.history import FeedHistory
from tensorflowonspark.driver.feed.job import FeedRequest
from tensorflowonspark.driver.feed.session import FeedSession
from tensorflowonspark.driver.hangs import find_vanished
from tensorflowonspark.driver.metrics import spans
from tensorflowonspark.driver.metrics.metrics_store import MetricsStore
from tensorflowonspark.driver.restart_budget import RestartBudget
from tensorflowonspark.driver.spark.backend import Backend
from tensorflowonspark.errors import (
    ClusterError,
    FailureKind,
    FeedError,
    NodeError,
    SlotsError,
    StartError,
    is_planned,
)
from tensorflowonspark.run_files import new_run
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_runs: set[str] = set()  # ids of those that have not ended, for which executors keep something


class ClusterRun:
    """One cluster from its start to its end: its attempts, the history of its feeds, and what outlives a failure.

    That is its metrics, console and page; `dashboard` is None until the start.
    """

    def __init__(self, backend: Backend, config: ClusterConfig, name: str = "") -> None:
        require_packages(config)
        self._backend = backend
        self._config = config = replace(config, run=new_run())
        _runs.add(config.run)
        self.metrics = MetricsStore(name)
        self.metrics.manifest = config.manifest
        reservation = backend.reservation()
        self.console = ConsoleReporter(
            config,
            bar=None if reservation is None else False,  # several clusters at the same time have none
            hadoop=backend.hadoop_settings,
            about=None if reservation is None else reservation.about(),
        )
        self.dashboard: DashboardService | None = None
        self._terminals: AttachServer | None = None
        self._restarting = False
        self._cause: BaseException | None = None  # of the cluster's end, unless a node has failed
        self._cancelled = Event()
        self._cancel_error: Exception | None = None
        self._budget = RestartBudget(config)
        self.left: set[str] = set()  # hosts that go, and from which the nodes that had to have gone already
        self._history = FeedHistory()
        self._session: FeedSession | None = None  # the current feed's
        self._attempt = self._next_attempt(config)

    @property
    def attempt(self) -> ClusterAttempt:
        """The current attempt; it has as many workers as there were slots for when it started."""
        return self._attempt

    def start(self, held: FeedRequest | None = None) -> None:
        """Bring all nodes up; return when their programs start.

        With `held`, the tasks that hold the nodes feed the first feed. It ends when the programs have all rows.
        """
        if self._attempt.started:
            raise ClusterError("the cluster was started before: make a new one")
        self.console.start(self.metrics)
        spans.follow(self.metrics)
        if held is not None:
            self._history.add(held)
        try:
            self._open_dashboard()
            if self._config.breakpoints:
                self._terminals = AttachServer(self.metrics.name, lambda: self._attempt.monitor.breakpoints)
            self._retry(self._bring_up)
        except BaseException as error:
            self._cause = error
            self._attempt.abort()
            raise

    def _open_dashboard(self) -> None:
        """Serve what the settings ask for, from before the first node until the cluster's end."""
        self.dashboard = DashboardService(
            self._backend,
            self._config,
            self.metrics,
            lambda: self._attempt.monitor.roster.tensorboard_url,
            self._collect_stacks,
        )
        for name, url in {"dashboard": self.dashboard.url, "metrics": self.dashboard.metrics_url}.items():
            if url is not None:
                self.console.note(f"{name}: {url}")

    def _collect_stacks(self, node: str) -> str:
        return self._attempt.monitor.stacks.collect(node)

    def run_feed(self, request: FeedRequest) -> None:
        """Feed, and return when the programs are done with it; after a restart, feed again what is needed."""
        self.require_running()

        def feed() -> None:
            self._bring_up()
            self._feed(request)

        self._retry(feed, repeatable=request.keeps_rows)
        self._history.add(request)

    def open_stream(self, request: FeedRequest) -> FeedSession:
        """Begin a feed of which the DataFrames come one after the other; `close_stream` ends it."""
        self._require_feedable(request)
        self._history.streams = True
        return self._open(request)

    def close_stream(self, *, completed: bool = True) -> None:
        """End the feed that `open_stream` has begun; if it was never fed, its number goes to the next feed."""
        self._history.streams = False
        if completed:
            self._history.done += 1
            self._history.add(None)
        if self._session is not None:
            self._session.close()
            self.metrics.end_training()  # without advice: a stream's rows come when there are new ones
            self._session = None

    def run_with_restarts(self, action: Callable[[], _T]) -> _T:
        """Return what an action returns; if a node fails meanwhile, repeat it in a new attempt, if that is allowed."""

        def act() -> _T:
            self._bring_up()
            return action()

        return self._retry(act)

    def require_running(self) -> None:
        """Raise `ClusterError` if the cluster is not running, or this is not the process that has made it."""
        self._attempt.require_own_process()
        if not self._attempt.running:
            raise not_running()

    # ---- attempts

    def _retry(self, action: Callable[[], _T], *, repeatable: bool = True) -> _T:
        """Return what an action returns; repeat it in a new attempt as often as the policy allows.

        An action that is not repeatable is repeated only as long as the programs have not written a checkpoint in its
        midst.
        """
        self._history.repeatable = repeatable
        while True:
            try:
                return action()
            except (NodeError, StartError, SlotsError) as error:
                with self._ended_by_errors():
                    self._restart(error)
            except BaseException:
                with self._ended_by_errors():
                    raise

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Note the end of the cluster if an error leaves the block, and the attempt was closed for another one."""
        try:
            yield
        except BaseException as error:
            self._restarting = False
            if self._attempt.started and not self._attempt.running:
                self._cause = error
                self.attempt_closed()
            raise

    def _bring_up(self) -> None:
        """Start the attempt if it has not started, and feed what its programs have not seen."""
        if not self._attempt.started:
            self._fit()
            self._raise_if_cancelled()
            self._restarting = True  # an attempt that fails to come up may be followed by another one
            held = self._history.first if self._config.hold else None
            if held is None:
                self._attempt.start()
            else:
                self._start_held(held)
            self._restarting = False
        for request in self._history.left:
            self._feed(request)

    def _start_held(self, request: FeedRequest) -> None:
        """Start the attempt with tasks that feed their own nodes, and wait until the programs have what they need."""
        session = self._open(request, held=True)  # before a report could be missed
        try:
            self._attempt.start(request.data, session.spec())
            session.run()
        finally:
            session.close()
            self._session = None
        self._history.done += 1

    def _restart(self, error: ClusterError) -> None:
        if isinstance(error, NodeError) and error.cause == FailureKind.EXECUTOR_LOST.name.lower():
            self._attempt.raise_if_cancelled()
        saved = self._attempt.monitor.roster.saved
        needed, rows_again = self._history.needed(saved)
        alone = self._attempt.monitor.restarts_nodes and not self._config.spec.num_ps
        preempted = rows_again and not alone and self._is_preemption(error)
        vanished = cache(lambda: find_vanished(self._attempt.monitor.roster.nodes))
        leaving = self._attempt.planned.hosts_to_leave()
        delay = self._budget.spend(
            error,
            preempted=preempted,
            alone=alone,
            rows_again=rows_again,
            without=lambda: _without(sorted({str(node.host) for node in vanished()}), sorted(leaving)),
        )
        # One of each host has Spark give up the others there.
        for executor in {node.process.executor for node in vanished()}:
            self._backend.give_up_host(executor)
        for host, executor in leaving.items():
            self._backend.leave_host(executor)
            self.left.add(host)
        self._restarting = True  # a cluster that holds its slots keeps them
        self._attempt.abort(is_last=False)
        self._cancelled.wait(delay)
        self._raise_if_cancelled()
        self._restarting = False
        self.console.begin()
        self.metrics.events.note("restart", f"all nodes are started again (restart {self._budget.used})")
        self._history.restart(saved, needed)
        self._attempt = self._next_attempt(self._config)

    def may_restart(self, kind: FailureKind) -> bool:
        """Return whether a restart of all nodes would follow a planned failure, or can follow another one."""
        if not is_planned(kind.name.lower()):
            return not self._budget.is_spent(kind)
        if self._history.streams or self._cancelled.is_set():
            return False
        return self._budget.allows(kind, rows_again=self._history.needed(self._attempt.monitor.roster.saved)[1])

    def _is_preemption(self, error: ClusterError) -> bool:
        """Whether a node has failed with its executor, which was preempted, or is about to be."""
        if isinstance(error, NodeError) and is_planned(error.cause):
            return error.cause == FailureKind.PREEMPTED.name.lower()
        of_executor = isinstance(error, NodeError) and may_be_preemption(error.cause, self._config.restarts)
        return of_executor and self._attempt.monitor.end.preempted

    def cancel(self, error: Exception) -> None:
        """End the cluster for another thread, now or before its next attempt; who waits for it gets the error."""
        self._cancel_error = self._cancel_error or error
        self._cancelled.set()
        self._attempt.monitor.end.cancel(error)

    def _raise_if_cancelled(self) -> None:
        if self._cancel_error is not None:
            raise self._cancel_error

    def _fit(self) -> None:
        """Take as many workers as there are slots for, if their number is a range."""
        spec, least = self._config.spec, self._config.min_workers
        if least is None:
            return
        nodes = len(spec.roles)
        fewest = nodes - spec.num_workers + least
        had = fewest if self._budget.used else 0
        slots = self._backend.reserve_slots(self._attempt.slots_wanted(fewest, had))
        workers = spec.num_workers - (nodes - slots)
        CONSOLE.log(_log, logging.INFO, "there are slots for %d workers", workers)
        self._attempt = self._next_attempt(replace(self._config, spec=replace(spec, num_workers=workers)))

    def _next_attempt(self, config: ClusterConfig) -> ClusterAttempt:
        config = replace(
            config,
            other_runs=tuple(_runs - {config.run}),
            attempt=self._config.attempt + self._budget.used,  # a client of Spark Connect has restarted it, too
            first_feed=self._history.done,
            saved_to=tuple(self._history.saved),
        )
        # Within a reservation it can have no more slots than it has.
        more = 0 if self._backend.reservation() else self._config.spec.num_workers - config.spec.num_workers
        return ClusterAttempt(self._backend, config, self, more)

    def attempt_closed(self) -> None:
        """Give the slots back and note the end of the cluster, unless its nodes are started again."""
        if not self._restarting:
            _runs.discard(self._config.run)
            self._backend.release_slots()
            cause = self._cause if isinstance(self._cause, ClusterError) else None  # not an interrupt
            error = self._attempt.monitor.end.failure() or cause
            text = "the cluster has ended" if error is None else str(error).partition("\n")[0]
            self.metrics.end(failed=error is not None, text=text)
            self._show_goodput()
            if self.dashboard is not None:
                self.dashboard.close()
            if self._terminals is not None:
                self._terminals.close()
            self.console.end()

    def _show_goodput(self) -> None:
        goodput = self.metrics.goodput()
        if goodput is not None and goodput.share and self._config.log_level <= logging.INFO:  # it has trained
            self.console.note(str(goodput), "goodput", share=goodput.share, causes=goodput.causes)

    # ---- feeds

    def _feed(self, request: FeedRequest) -> None:
        """Feed once. A feed that fails leaves its number, for which the programs wait, to the next feed."""
        self._require_feedable(request)
        session = self._open(request)
        try:
            session.run()
        finally:
            self._session = None
        self._history.done += 1
        can_start_early = not self._config.spec.num_ps and not request.validation_column
        self._attempt.advise(feeding_advice(session.waited, session.seconds, can_start_early=can_start_early))

    def _open(self, request: FeedRequest, *, held: bool = False) -> FeedSession:
        if self._session is not None:
            raise FeedError("another feed is in progress: one follows the other")
        self._session = FeedSession(self._attempt, self._history.done, request, held=held)
        return self._session

    def _require_feedable(self, request: FeedRequest) -> None:
        """Raise if the nodes can't take a further feed."""
        self.require_running()
        if self._config.hold:
            raise FeedError("a cluster with hold=True keeps the slots that feeding needs: leave it out, or use run()")
        returned = [str(node.role) for node in self._attempt.monitor.roster.readers() if node.program.returned]
        if returned and not request.independent_workers:
            raise FeedError(
                f"the program of {', '.join(returned)} has already returned: to take several feeds, let it loop over "
                "ctx.feeds()"
            )


def not_running() -> ClusterError:
    """Return the error of a call that needs a running cluster."""
    return ClusterError("the cluster is not running: use it inside its with block, or after start()")


def _without(vanished: Sequence[str], leaving: Sequence[str]) -> str:
    """Return which hosts a restart does not use, for messages.

    Examples
    --------
    >>> _without(["10.0.0.1"], ["10.0.0.2", "10.0.0.3"])
    ', without 10.0.0.1, which does not answer, without 10.0.0.2, 10.0.0.3, which go'
    """
    parts = [f", without {', '.join(vanished)}, which does not answer"] if vanished else []
    parts += [f", without {', '.join(leaving)}, which {'go' if leaving[1:] else 'goes'}"] if leaving else []
    return "".join(parts)
