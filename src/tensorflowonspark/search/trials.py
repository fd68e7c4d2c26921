"""Trials of a study, several at a time, each in a thread of the driver with slots of its own."""

import contextvars
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Condition, RLock
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.spark.slots import ApplicationSlots, Reservation, reserved
from tensorflowonspark.errors import ClusterError, SlotsError, SpecError, error_text
from tensorflowonspark.search.leftovers import ERROR, mark
from tensorflowonspark.search.reporting import MOST_CHARACTERS, TrialReporter
from tensorflowonspark.search.watching import Pruning, TrialWatch
from tensorflowonspark.terminal import CONSOLE

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_WAKE_SECONDS = 0.2  # a trial wakes the loop that ends; a time limit and more executors wake nobody
_CAPACITY_SECONDS = 5.0  # between two looks at whether there are more executors
_END_SECONDS = 30.0  # for cancelled trials to end their clusters

Objective = Callable[["Trial"], "float | Sequence[float]"]
Callback = Callable[["Study", "FrozenTrial"], None]


@dataclass(frozen=True)
class Settings:
    """The settings of `tune`, checked."""

    nodes: int
    trials: int | None
    jobs: int | None  # None: as many as there are slots for
    timeout: float | None
    pruning: Pruning
    catch: tuple[type[BaseException], ...]
    max_failures: int | None
    callbacks: tuple[Callback, ...] = ()
    bar: bool = False


class Search:
    """Runs the trials of one call of `tune`."""

    def __init__(
        self, study: "Study", objective: Objective, spark: "SparkSession", slots: ApplicationSlots, settings: Settings
    ) -> None:
        self._study = study
        self._objective = objective
        self._spark = spark
        self._slots = slots
        self._settings = settings
        self._lock = RLock()  # entered itself, as in `Monitor`
        self._changed = Condition(self._lock)
        self._running: list[TrialWatch] = []  # of the trials at present
        self._begun = 0
        self._failed = 0
        self._succeeded = 0
        self._error: BaseException | None = None  # that ends the search
        self._reporter = TrialReporter(study)

    def run(self) -> None:
        """Run the trials; return when all have ended, or raise what ends the search."""
        begin = looked = time.monotonic()
        limit = self._limit()
        self._study._stop_flag = False
        if self._settings.bar:
            self._reporter.draw(self._settings.trials)
        try:
            while True:
                now = time.monotonic()
                if now - looked > _CAPACITY_SECONDS:
                    looked, limit = now, self._limit()
                late = self._settings.timeout is not None and now - begin > self._settings.timeout
                with self._lock:
                    done = late or self._is_complete()
                    if self._error is not None or (done and not self._running):
                        break
                    startable = not done and len(self._running) < limit
                    if not startable:
                        self._changed.wait(_WAKE_SECONDS)
                if startable:
                    self._start_trial()
        except BaseException:
            self._cancel(ClusterError("the search was interrupted"))
            raise
        finally:
            self._reporter.close()
        if self._error is not None:
            self._cancel(ClusterError("the search has ended"))
            raise self._error

    def _is_complete(self) -> bool:
        trials = self._settings.trials
        return self._study._stop_flag or (trials is not None and self._begun >= trials)

    def _limit(self) -> int:
        """Return how many trials may run at the same time."""
        if self._settings.jobs is not None:
            return self._settings.jobs
        return max(1, self._slots.share() // self._settings.nodes)

    def _start_trial(self) -> None:
        from pyspark import InheritableThread

        watch = TrialWatch(self._settings.pruning)
        run = contextvars.copy_context().run
        thread = InheritableThread(target=run, args=(self._run_trial, watch), daemon=True)
        with self._lock:
            thread.start()
            self._begun += 1
            self._running.append(watch)

    def _cancel(self, error: Exception) -> None:
        """End all trials; mark those as failed whose objectives do not end in time."""
        from optuna.trial import TrialState

        with self._lock:
            running = list(self._running)
        for each in running:
            each.cancel(error)
        with self._lock:
            self._changed.wait_for(lambda: not self._running, _END_SECONDS)
            late = list(self._running)
        for each in late:
            if each.trial is not None:
                text = "trial %d does not end: its objective is left running, and its outcome is ignored"
                CONSOLE.log(_log, logging.WARNING, text, each.trial.number)
                self._study.tell(each.trial, state=TrialState.FAIL, skip_if_finished=True)

    # ---- in the thread of a trial

    def _run_trial(self, watch: TrialWatch) -> None:
        watch.begin()
        self._study._thread_local.in_optimize_loop = True  # so that Study.stop works, as in Study.optimize
        try:
            with ExitStack() as stack:
                name = f"a trial of study {self._study.study_name!r}"
                nodes = self._settings.nodes
                lease = self._slots.acquire(name, nodes, nodes, watch.check)
                stack.enter_context(reserved(self._spark.sparkContext, Reservation(lease, watch.follow, watch.about)))
                self._evaluate(watch)
        except BaseException as error:  # raised where the search is waited for
            with self._lock:
                if error is not watch.error:
                    self._error = self._error or error
        finally:
            with self._lock:
                self._running.remove(watch)
                self._changed.notify_all()

    def _evaluate(self, watch: TrialWatch) -> None:
        from optuna import TrialPruned
        from optuna.storages._heartbeat import get_heartbeat_thread
        from optuna.trial import TrialState

        watch.trial = trial = self._study.ask()
        begin = time.monotonic()
        values: list[float] | None = None
        error: BaseException | None = None
        with get_heartbeat_thread(trial._trial_id, self._study._storage):  # nothing for storages without a heartbeat
            try:
                mark(trial)
                values = _checked(self._objective(trial), len(self._study.directions))
            except BaseException as problem:
                error = problem
        if values is not None:
            state = TrialState.COMPLETE
        elif isinstance(error, TrialPruned) or watch.pruned:
            state, error = TrialState.PRUNED, None
        else:
            state = TrialState.FAIL
            trial.set_user_attr(ERROR, f"{type(error).__name__}: {error_text(error)}" if error is not None else "")
        ended = self._study.tell(trial, values, state=state, skip_if_finished=True)
        self._note(ended, error if watch.error is None else None, time.monotonic() - begin)

    def _note(self, trial: "FrozenTrial", error: BaseException | None, seconds: float) -> None:
        """Count and show a trial that has ended; end the search if no further one makes sense."""
        with self._lock:
            if error is not None:
                self._failed += 1
                most = self._settings.max_failures
                hopeless = most is not None and not self._succeeded and self._failed >= most
                ends = isinstance(error, (SlotsError, SpecError)) or not isinstance(error, self._settings.catch)
                if ends or hopeless or getattr(self._spark.sparkContext, "_jsc", None) is None:
                    self._error = self._error or error
            else:
                self._succeeded += 1
            self._reporter.show(trial, error, seconds)
            for each in self._settings.callbacks:
                each(self._study, trial)


def _checked(found: Any, count: int) -> list[float]:
    """Return what an objective has returned as numbers; it raises ValueError for anything else."""
    values = list(found) if isinstance(found, (list, tuple)) else [found]
    expected = "a number" if count == 1 else f"{count} numbers"
    try:
        numbers = [float(each) for each in values]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count or any(map(math.isnan, numbers)):
        raise ValueError(
            f"the objective returned {error_text(Exception(repr(found)), MOST_CHARACTERS)}: expected {expected}"
        )
    return numbers
