"""Series and reports of bounded length: the older a series is, the longer the time that a point stands for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST = 2000
_KEPT = _MOST // 4  # of the ends of epochs, and of the others, when there are too many


@dataclass(frozen=True)
class Report:
    """Values that the chief reported: those of an epoch's end, or within an epoch."""

    time: float  # seconds since 1970
    epoch: int  # from 0
    values: Mapping[str, float]
    ended: bool  # they are those of the epoch's end


class Reports:
    """Reports in the order of their times.

    When there are too many, the list is thinned: reports within epochs are left out first, evenly over the time.

    Examples
    --------
    >>> reports = Reports()
    >>> for second in range(10_000):
    ...     reports.add(Report(float(second), 0, {"loss": 1.0}, ended=False))
    >>> times = [each.time for each in reports.all()]
    >>> len(times) < 2000, times[0], times[-1]
    (True, 0.0, 9999.0)
    """

    def __init__(self) -> None:
        self._reports: list[Report] = []

    def add(self, report: Report) -> None:
        """Add a report, which is later than those before."""
        self._reports.append(report)
        if len(self._reports) > _MOST:
            self._reports = _thinned(self._reports)

    def extend(self, epoch: int, values: Mapping[str, float]) -> None:
        """Add values to the last report of an epoch's end, if it is kept."""
        places = [place for place, each in enumerate(self._reports) if each.ended and each.epoch == epoch]
        for place in places[-1:]:
            report = self._reports[place]
            self._reports[place] = replace(report, values={**report.values, **values})

    def all(self) -> list[Report]:
        """Return a copy of the list."""
        return list(self._reports)


def _thinned(reports: list[Report]) -> list[Report]:
    """Return the first one, the last one, and of those between about half as many as there may be, at most."""
    ends = [each for each in reports if each.ended]
    keeps_ends = len(ends) <= _KEPT
    first, *others = reports if keeps_ends else ends
    seconds = (others[-1].time - first.time) / _KEPT
    kept = [first]
    for each in others:
        if each.time - kept[-1].time >= seconds or (each.ended and keeps_ends) or each is others[-1]:
            kept.append(each)
    return kept


_POINTS = 512


class History:
    """The values of several series at common times.

    The first points are as close as they are added. When there is no room for another, each two neighbours become one,
    their mean, and from then on as many points are averaged before one is kept.

    The number of points is even.

    Examples
    --------
    >>> history = History(["loss"], points=4)
    >>> for time in range(6):
    ...     history.add(time, {"loss": time * 10.0})
    >>> history.columns()
    {'time': [0.5, 2.5, 4.5], 'loss': [5.0, 25.0, 45.0]}
    """

    def __init__(self, names: Sequence[str], points: int = _POINTS) -> None:
        self._names = tuple(names)
        self._points = points
        self._times: npt.NDArray[np.float64] = np.zeros(points, np.float64)
        self._values: npt.NDArray[np.float32] = np.full((len(names), points), np.nan, np.float32)
        self._size = 0
        self._of_point = 1  # additions that one point stands for
        self._pending: list[tuple[float, list[float]]] = []
        self._lock = Lock()

    def add(self, time: float, values: Mapping[str, float | None]) -> None:
        """Add a point; what is missing, None or NaN is unknown at that time."""
        row = [np.nan if (value := values.get(name)) is None else value for name in self._names]
        with self._lock:
            self._add(time, row)

    def _add(self, time: float, row: list[float]) -> None:
        self._pending.append((time, row))
        if len(self._pending) < self._of_point:
            return
        if self._size == self._points:
            self._halve()
            if len(self._pending) < self._of_point:
                return
        if len(self._pending) == 1:
            self._times[self._size], self._values[:, self._size] = time, row
        else:
            times, rows = zip(*self._pending, strict=True)
            self._times[self._size] = np.mean(times)
            self._values[:, self._size] = _mean(np.array(rows, np.float64).T)
        self._size += 1
        self._pending = []

    def _halve(self) -> None:
        half = self._points // 2
        self._times[:half] = self._times.reshape(half, 2).mean(axis=1)
        self._values[:, :half] = _mean(self._values.reshape(-1, half, 2))
        self._size = half
        self._of_point *= 2

    def columns(self) -> dict[str, list[float | None]]:
        """Return the times and the values of each series by its name, of equal length; None where unknown."""
        with self._lock:
            times, rows = self._times[: self._size].tolist(), self._values[:, : self._size].copy()
        columns: dict[str, list[float | None]] = {"time": times}
        for name, values in zip(self._names, rows, strict=True):
            columns[name] = [None if np.isnan(value) else _short(value) for value in values]
        return columns


def _mean(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the means over the last axis of the values that are known; NaN where none is."""
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _short(value: np.float32) -> float:
    """Return a number with as many digits as a float32 has, and no more."""
    return float(f"{value:.6g}")
