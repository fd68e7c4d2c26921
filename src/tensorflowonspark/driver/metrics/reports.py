"""What the chief reports of its metrics: a list of bounded length that covers the whole training."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Report", "Reports"]

_MOST = 2000
_KEPT = _MOST // 4  # of the ends of epochs, and of the others, when there are too many


@dataclass(frozen=True)
class Report:
    """Values that the chief reported: those of an epoch's end, or within an epoch.

    Attributes
    ----------
    time : float
        When, in seconds since 1970.
    epoch : int
        The epoch, from 0.
    values : mapping of str to float
        The metrics.
    ended : bool
        Whether they are those of the epoch's end.
    """

    time: float
    epoch: int
    values: Mapping[str, float]
    ended: bool


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
