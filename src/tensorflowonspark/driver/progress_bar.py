"""The progress bar of a training, on a terminal or in a notebook."""

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from tqdm import TqdmWarning, tqdm

from tensorflowonspark.messages import Progress
from tensorflowonspark.terminal import CONSOLE, in_notebook


class ProgressBar:
    """One bar, which begins anew with each epoch. Its methods are called in the thread of the console."""

    def __init__(self, loss: Callable[[], float | None]) -> None:
        self._loss = loss
        self._bar: tqdm[NoReturn] | None = None
        self._epoch = -1

    def draw(self, now: Progress, stream: Any) -> None:
        """Show the progress of a node.

        Without the number of steps the rows are a stream, which has no known end.
        """
        if self._bar is not None and (self._bar.total is None) is not (not now.steps):
            self.close()
        name = f"epoch {now.epoch + 1}" if now.steps else "stream"
        if self._bar is None:
            keep_bars_below(stream)
            options = {"unit": "step", "leave": False, "dynamic_ncols": True}
            self._bar = bar_class()(total=now.steps or None, desc=name, file=stream, **options)
        elif now.epoch != self._epoch:
            self._bar.set_description(name, refresh=False)
            self._bar.reset(now.steps or None)
        self._epoch = now.epoch
        loss = self._loss()
        if loss is not None and math.isfinite(loss):
            self._bar.set_postfix(loss=loss, refresh=False)
        self._bar.update(now.step - self._bar.n)
        if now.step == now.steps:
            self._bar.refresh()  # tqdm draws at intervals, and would omit the end of a short epoch

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def keep_bars_below(stream: Any) -> None:
    """Have bars removed from a stream before a line is written, and drawn again below it."""
    CONSOLE.aside = partial(tqdm.external_write_mode, file=stream)


def bar_class() -> Any:
    """Return the bar of a notebook, a widget where there are widgets, or that of a terminal."""
    if not in_notebook():
        return tqdm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # without ipywidgets the bar is a text
        from tqdm.auto import tqdm as automatic
    return automatic
