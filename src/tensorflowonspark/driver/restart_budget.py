"""The restarts of all nodes that a cluster has left."""

import logging
from collections.abc import Callable

from tensorflowonspark.config import ClusterConfig
from tensorflowonspark.driver.decision import Ended, Failure, Restart, Used, decide, may_be_preemption
from tensorflowonspark.errors import ClusterError, FailureKind
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)


class RestartBudget:
    """The restarts that a cluster's policy allows, less those that it has had."""

    def __init__(self, config: ClusterConfig) -> None:
        self._policy = config.restarts
        self._used = Used()

    @property
    def used(self) -> int:
        """How many restarts there have been."""
        return self._used.restarts + self._used.preemptions + self._used.growths

    def allows(self, planned: FailureKind, *, rows_again: bool) -> bool:
        """Return whether all nodes would be started again, without a charge, once their workers have saved."""
        failure = Failure(planned.name.lower(), preempted=planned is FailureKind.PREEMPTED)
        decision = decide(Ended(self._policy, self._used, rows_again=rows_again), failure)
        return isinstance(decision, Restart) and (decision.preemption or decision.growth)

    def is_spent(self, kind: FailureKind) -> bool:
        """Return whether no restart can follow a failure of a kind, also if its executor was preempted."""
        cause = kind.name.lower()
        failure = Failure(cause, preempted=may_be_preemption(cause, self._policy))
        return not isinstance(decide(Ended(self._policy, self._used), failure), Restart)

    def spend(
        self,
        error: ClusterError,
        *,
        preempted: bool = False,
        alone: bool = False,
        rows_again: bool = True,
        without: Callable[[], str] = str,
    ) -> float:
        """Count a restart after a failure; return the seconds to wait before it.

        Raises the failure itself if the policy does not allow a restart after it. If one follows, `without` returns
        which hosts are not used, for the message. For the others see `Failure` and `Ended`.
        """
        decision = decide(Ended(self._policy, self._used, alone, rows_again), Failure.of(error, preempted=preempted))
        if not isinstance(decision, Restart):
            raise error
        self._used = self._used.add(decision)
        again = self._used.describe("All nodes are", decision, self._policy, without())
        CONSOLE.log(_log, logging.WARNING, "%s\n%s", str(error).partition("\n")[0], again)
        return decision.delay
