"""Restarts: when a node fails and the policy allows it, all nodes are started again and fed what they need.

What a new life must be given: its programs begin anew, and go on from their last checkpoint. They tell the driver in
which feed they wrote it; so that feed and all that came since are fed again, under the numbers that they had. Without a
checkpoint these are all feeds from the first one on. Then the driver does again what it was at.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.attempt import ClusterAttempt
from tensorflowonspark.driver.spark.backend import Backend
from tensorflowonspark.errors import ClusterError, NodeError, SlotsError, StartError
from tensorflowonspark.terminal import CONSOLE

__all__ = ["RestartController", "Restarts"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Restarts:
    """Counts the restarts of one cluster.

    Parameters
    ----------
    settings : Settings
        The cluster's.
    """

    def __init__(self, settings: ClusterConfig) -> None:
        self._policy = settings.restarts
        self.made = 0

    def allow(self, error: ClusterError) -> float:
        """Return after how many seconds the cluster may be started again; raise the error if it may not."""
        policy = self._policy
        # A restart that fails to come up has the same cause. Slots have been waited for, as long as the user allows.
        counts = error.cause in policy.causes if isinstance(error, NodeError) else self.made > 0
        counts = counts and not isinstance(error, SlotsError)
        if not counts or self.made >= policy.max_restarts:
            raise error
        delay = policy.delay(self.made)
        self.made += 1
        CONSOLE.log(
            _log,
            logging.WARNING,
            "%s\nAll nodes are started again%s (restart %d of %d)",
            str(error).partition("\n")[0],
            f" in {delay:g} s" if delay else "",
            self.made,
            policy.max_restarts,
        )
        return delay


class RestartController:
    """The lives of one cluster.

    Parameters
    ----------
    backend : Backend
        What carries the nodes.
    settings : Settings
        What they are to be.

    Attributes
    ----------
    life : Lifetime
        The present one; it has as many workers as there are slots for when it begins.
    feeds : int
        How many feeds its programs are done with, counted from the cluster's first one.
    past : list of callable or None
        What feeds each of them again, where that is possible.
    begin : callable
        Starts the present life.
    """

    def __init__(self, backend: Backend, settings: ClusterConfig) -> None:
        self._backend = backend
        self._settings = settings
        self._restarts = Restarts(settings)
        self.feeds = 0
        self.life = self._next_life(settings)
        self.past: list[Callable[[], None] | None] = []
        self.begin: Callable[[], None] = self._start

    def _start(self) -> None:
        self.life.start()

    def run_with_restarts(self, act: Callable[[], _T], *, only_whole: bool = False) -> _T:
        """Do something; if a node fails meanwhile, do it again in a new life, as often as the policy allows.

        Parameters
        ----------
        act : callable
            What to do.
        only_whole : bool
            Whether it can't be done again once the programs have written a checkpoint in its midst.
        """
        while True:
            try:
                if not self.life.started:
                    self._fit()
                    self.begin()
                self._feed_again()
                return act()
            except (NodeError, StartError, SlotsError) as error:
                self._begin_anew(error, only_whole)

    def _feed_again(self) -> None:
        """Feed what the programs of this life have not seen."""
        while self.feeds < len(self.past):
            feed = self.past[self.feeds]
            assert feed is not None
            feed()

    def _begin_anew(self, error: ClusterError, only_whole: bool) -> None:
        saved_in = max(self.life.monitor.saved_in, 0)
        if None in self.past[saved_in:] or (only_whole and self.life.monitor.saved_in >= self.feeds):
            raise error  # rows that streamed do not come again
        delay = self._restarts.allow(error)
        self.life.abort()
        time.sleep(delay)
        self.feeds = saved_in
        self.life = self._next_life(self._settings)

    def _fit(self) -> None:
        """Take as many workers as there are slots for, where their number was left open."""
        spec, least = self._settings.spec, self._settings.min_workers
        if least is None:
            return
        nodes = len(spec.roles)
        fewest = nodes - spec.num_workers + least
        had = fewest if self._restarts.made else 0
        slots = self._backend.find_slots(fewest, nodes, self._settings.start_timeout, had)
        workers = spec.num_workers - (nodes - slots)
        CONSOLE.log(_log, logging.INFO, "there are slots for %d workers", workers)
        self.life = self._next_life(replace(self._settings, spec=replace(spec, num_workers=workers)))

    def _next_life(self, settings: ClusterConfig) -> ClusterAttempt:
        numbered = replace(settings, attempt=self._restarts.made, first_feed=self.feeds)
        return ClusterAttempt(self._backend, numbered)
