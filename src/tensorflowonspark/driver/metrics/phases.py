"""Phases of a run: a feed, a first step or a save, from its begin to its end."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensorflowonspark.messages import TrainingTotals


@dataclass(frozen=True)
class Phase:
    """A part of a run that is over; times in seconds since 1970."""

    name: Literal["feed", "first_step", "save"]
    began: float
    ended: float
    facts: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""


class TrainingPhases:
    """Finds the first step and the saves of a program in what its node reports."""

    def __init__(self) -> None:
        self._last = TrainingTotals()
        self._saving = 0.0  # seconds, until the last save that was found

    def take(self, totals: TrainingTotals, begun: float | None) -> Iterator[Phase]:
        """Return the phases that are over with a report; the program has begun at a time of time.monotonic."""
        last, self._last = self._last, totals
        if totals.total_steps < last.total_steps or totals.saving < last.saving:  # those were another process's
            last, self._saving = TrainingTotals(), 0.0
        now = time.time()
        if totals.total_steps and not last.total_steps and begun is not None:
            yield Phase("first_step", now - (time.monotonic() - begun), now, {"step": totals.total_steps})
        if totals.saved is not None and totals.saved != last.saved:
            seconds, self._saving = totals.saving - self._saving, totals.saving
            yield Phase("save", now - seconds, now, {"step": totals.saved})
