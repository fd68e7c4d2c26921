"""How far ``transform`` is, in rows: what Spark's tasks count, and a bar of them."""

import logging
import sys
import time
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from pyspark import AccumulatorParam, TaskContext
from tqdm import tqdm

from tensorflowonspark.driver.progress_bar import bar_class
from tensorflowonspark.driver.spark.backend import is_remote
from tensorflowonspark.errors import SpecError
from tensorflowonspark.terminal import in_notebook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_DRAW_SECONDS = 0.5
Counts = dict[tuple[int, int, int], int]  # rows by call of ``transform``, Spark's stage and its partition


class _MostRows(AccumulatorParam[Counts]):
    """Counts a partition once, however often Spark computes it within a stage."""

    def zero(self, value: Counts) -> Counts:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:
        for key, rows in value2.items():
            value1[key] = max(value1.get(key, 0), rows)
        return value1


@dataclass(frozen=True)
class RowCounter:
    """What tasks report their rows to; Spark passes it on when they have ended."""

    counts: Any  # an accumulator
    call: int

    def add(self, rows: int) -> None:
        """Count the rows of this task."""
        context = TaskContext.get()
        if context is not None:
            self.counts.add({(self.call, context.stageId(), context.partitionId()): rows})


class RowCounts:
    """The rows of all calls of ``transform`` in a block."""

    def __init__(self) -> None:
        self._counts: Any = None
        self._calls = 0

    @property
    def rows(self) -> int:
        """The rows of all tasks that have ended."""
        return sum(list(self._counts.value.values())) if self._counts is not None else 0

    def counter(self, spark: "SparkSession") -> RowCounter:
        """Return what the tasks of one call report to.

        Raises SpecError in a session of Spark Connect, which has no accumulators.
        """
        if is_remote(spark):
            raise SpecError("progress counts by Spark's accumulators, which a session of Spark Connect does not have")
        if self._counts is None:
            self._counts = spark.sparkContext.accumulator({}, _MostRows())
        self._calls += 1
        return RowCounter(self._counts, self._calls)


class RowProgress:
    """The rows that a stage has been applied to, and a bar of them; `KerasModel.progress` makes it.

    A context manager. The bar is drawn on a terminal and in a notebook. Rows count when their task has ended.

    Attributes
    ----------
    total : int or None
        The rows that there will be, if that is known.
    rows : int
        The rows up to now, each as often as Spark's actions have asked for it.
    """

    def __init__(self, running: list[RowCounts], total: int | None) -> None:
        self.total = total
        self._running = running  # the stage's: that of this one within its block
        self._counts = RowCounts()
        self._over = Event()
        self._thread = Thread(target=self._draw, name="progress of transform", daemon=True)
        self._started = 0.0

    @property
    def rows(self) -> int:
        """The rows up to now, each as often as Spark's actions have asked for it."""
        return self._counts.rows

    def __enter__(self) -> "RowProgress":
        """Count the rows of what the stage is applied to from now on."""
        if self._running or self._started:
            raise SpecError("progress: the rows of this stage are counted already, in a block around this one")
        self._running.append(self._counts)
        self._started = time.monotonic()
        if sys.stderr.isatty() or in_notebook():
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the bar, and log the rows."""
        self._running.remove(self._counts)
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        seconds = time.monotonic() - self._started
        of = f" of {self.total:,}" if self.total is not None else ""
        _log.info("transform: %s rows%s in %.1f s", f"{self.rows:,}", of, seconds)

    def _draw(self) -> None:
        options = {"unit": " rows", "unit_scale": True, "leave": False, "dynamic_ncols": True}
        bar: tqdm[Any] = bar_class()(total=self.total, desc="transform", file=sys.stderr, **options)
        while not self._over.wait(_DRAW_SECONDS):
            if not bar.update(self.rows - bar.n):  # which draws at intervals, and the seconds go on
                bar.refresh()
        bar.close()
