"""Parameter servers on the driver's own machine, which take no slots."""

import os
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from subprocess import TimeoutExpired
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from tensorflowonspark.driver.spark.jobs import Stage
from tensorflowonspark.messages import Detach, Failed
from tensorflowonspark.processes import Process
from tensorflowonspark.supervisor.client import receive_reply, start_supervisor
from tensorflowonspark.task.launch import LaunchPlan

if TYPE_CHECKING:
    from tensorflowonspark.errors import FeedError

__all__ = ["LocalNodes"]


class LocalNodes:
    """Some nodes beside a stage that places the others.

    They are supervised as any node is, and end with this process, whatever it ends of.

    Parameters
    ----------
    plan : Plan
        What is to run.
    numbers : sequence of int
        The nodes that run here.
    stage : Stage
        What places the others.
    """

    def __init__(self, plan: LaunchPlan, numbers: Sequence[int], stage: "Stage") -> None:
        self._plan = replace(plan, echo=False)  # this process shows the nodes' lines already
        self._stage = stage
        self._problems: list[str] = []
        self._processes: list[Process] = []
        for number in numbers:
            process, pipe = start_supervisor(self._plan.assignment(number, plan.driver[0], os.getpid()))
            self._processes.append(process)
            Thread(target=self._see_off, args=(number, pipe), daemon=True).start()

    def _see_off(self, number: int, pipe: Connection) -> None:
        """Hear whether a supervisor has reached the driver; from then on the two talk to each other."""
        answer = receive_reply(pipe)
        if isinstance(answer, Failed):
            role = self._plan.config.spec.roles[number]
            self._problems.append(f"{role} on the driver's machine: {answer.reason}; {answer.advice}")
        else:
            pipe.send(Detach())

    @property
    def ended(self) -> bool:
        """Whether the stage has; nodes here are awaited as all others are."""
        return self._stage.ended

    def problems(self) -> list[str]:
        """Return why nodes could not be placed."""
        return [*self._problems, *self._stage.problems()]

    def data_problem(self) -> "FeedError | None":
        """Return that Spark could not compute what the stage feeds, if that is why it failed."""
        return self._stage.data_problem()

    def cancel(self) -> None:
        """End the stage; the nodes here hear from the driver themselves."""
        self._stage.cancel()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the stage and of the processes here, but not longer than asked."""
        end = monotonic() + seconds
        self._stage.wait(seconds)
        for process in self._processes:
            try:
                process.wait(max(0.0, end - monotonic()))
            except TimeoutExpired:
                return
