"""What a search shows on the driver's console: a line for each trial that has ended, above a bar of all trials."""

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tensorflowonspark.driver.progress_bar import bar_class, keep_bars_below
from tensorflowonspark.driver.spark.jobs import first_cause
from tensorflowonspark.errors import error_text
from tensorflowonspark.terminal import CONSOLE, Unblocked

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

_log = logging.getLogger(__name__)
MOST_CHARACTERS = 300  # of an error in one line: some lines of a terminal, which shows many trials


class TrialReporter:
    """Shows the trials of a study."""

    def __init__(self, study: "Study") -> None:
        self._study = study
        self._stream: Any = Unblocked(sys.stderr, CONSOLE)
        self._bar: Any = None

    def draw(self, total: int | None) -> None:
        """Draw a bar for so many trials, or for an unknown number of them."""
        options = {"desc": "trials", "unit": "trial", "file": self._stream, "dynamic_ncols": True}
        self._bar = bar_class()(total=total, **options)
        keep_bars_below(self._stream)

    def show(self, trial: "FrozenTrial", error: BaseException | None, seconds: float) -> None:
        """Show a trial that has ended after some seconds, with an error if it has failed."""
        parameters = ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
        outcome = trial.state.name.lower()
        if trial.values is not None and trial.state.name != "PRUNED":
            outcome = ", ".join(map(_short, trial.values))
        if error is not None:
            outcome = f"failed: {type(error).__name__}: {_first_line(error)}"
        name = f"trial {trial.number}" + (f" ({parameters})" if parameters else "")
        text = f"{name}: {outcome} in {seconds:.1f} s{self._describe_best(trial)}"
        if error is None and not _log.hasHandlers():  # else Python shows warnings alone
            self._write(text)
        else:
            CONSOLE.log(_log, logging.INFO if error is None else logging.WARNING, "%s", text)
        if self._bar is not None:
            CONSOLE.put(lambda: self._bar.update(1), lambda: iter([self._stream]))

    def _describe_best(self, trial: "FrozenTrial") -> str:
        if len(self._study.directions) > 1 or trial.state.name != "COMPLETE":
            return ""
        with suppress(ValueError):  # no trial meets the constraints of the study's sampler
            best = self._study.best_trial
            return f"; the best is {_short(best.value)} (trial {best.number})"
        return ""

    def _write(self, text: str) -> None:
        from optuna.logging import INFO, get_verbosity

        if get_verbosity() > INFO:  # of Optuna's own lines, whose place these take
            return

        def write() -> None:
            with CONSOLE.aside(), suppress(Exception):  # as after ``| head``
                self._stream.write(f"{text}\n")
                self._stream.flush()

        CONSOLE.put(write, lambda: iter([self._stream]), 1, len(text))

    def close(self) -> None:
        """Remove the bar, and wait until all lines are shown."""
        if self._bar is not None:
            CONSOLE.put(self._bar.close, lambda: iter([self._stream]))
        CONSOLE.drain()  # before what the driver's program prints next


def _first_line(error: BaseException) -> str:
    text = error_text(error, MOST_CHARACTERS)
    cause = "\n" in text and "Caused by" in text
    return first_cause(error)[:MOST_CHARACTERS] if cause else text.partition("\n")[0]


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
