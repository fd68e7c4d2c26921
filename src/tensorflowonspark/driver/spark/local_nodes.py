"""Nodes on the driver's machine, which take no slots: parameter servers."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from subprocess import TimeoutExpired
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from tensorflowonspark.driver.spark.jobs import Stage
from tensorflowonspark.messages import Detach, Failed
from tensorflowonspark.processes import Process
from tensorflowonspark.supervisor.supervisor_client import receive_reply, start_supervisor, supervisor_environment
from tensorflowonspark.task.launch import LaunchPlan

if TYPE_CHECKING:
    from tensorflowonspark.errors import FeedError


class LocalNodes(Stage):
    """A stage that launches some nodes on the driver's machine, and the others by another stage.

    They are supervised like any node, and end with this process, however it ends.
    """

    def __init__(self, plan: LaunchPlan, numbers: Sequence[int], stage: "Stage") -> None:
        self._plan = replace(plan, echo=False)  # this process already shows the nodes' output
        self._stage = stage
        self._problems: list[str] = []
        self._processes: list[Process] = []
        for number in numbers:
            try:
                assignment = self._plan.assignment(number, plan.driver[0], os.getpid())
                process, pipe = start_supervisor(assignment, supervisor_environment())
                self._processes.append(process)
                Thread(target=self._detach, args=(number, pipe), daemon=True).start()
            except LookupError as error:
                self._note(number, str(error))
            except (OSError, RuntimeError) as error:  # a thread that can't be started is the latter
                self._note(number, f"its supervisor can't be started ({error}): see ulimit -u and -n, and memory")

    def _detach(self, number: int, pipe: Connection) -> None:
        """Wait until a supervisor has connected to the driver, and detach it; note its problem if it has not."""
        answer = receive_reply(pipe)
        if isinstance(answer, Failed):
            self._note(number, f"{answer.reason}; {answer.advice}")
        else:
            with suppress(OSError):  # it has ended, which the driver's monitor notices
                pipe.send(Detach())

    def _note(self, number: int, problem: str) -> None:
        self._problems.append(f"{self._plan.config.spec.roles[number]} on the driver's machine: {problem}")

    @property
    def ended(self) -> bool:
        """Whether the other stage has ended; the driver waits for local nodes as for all others."""
        return self._stage.ended

    def problems(self) -> list[str]:
        """Return why nodes could not be launched."""
        return [*self._problems, *self._stage.problems()]

    def data_problem(self) -> "FeedError | None":
        """Return the error of the rows that the other stage feeds, if it has failed because of it."""
        return self._stage.data_problem()

    def cancel(self) -> None:
        """Cancel the other stage; the driver's monitor stops the local nodes."""
        self._stage.cancel()

    def wait(self, seconds: float) -> None:
        """Wait at most so many seconds for the end of the other stage and of the local processes."""
        end = monotonic() + seconds
        self._stage.wait(seconds)
        for process in self._processes:
            try:
                process.wait(max(0.0, end - monotonic()))
            except TimeoutExpired:
                return
