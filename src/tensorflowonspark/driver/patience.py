"""How long a feed may stand still: counted from the last progress of whatever kind."""

import time
from collections.abc import Callable, Hashable

from tensorflowonspark.errors import FeedError, SpecError

__all__ = ["Patience"]


class Patience:
    """Raises when nothing has moved for too long.

    Parameters
    ----------
    seconds : float
        How long is too long.
    marks : callable
        Returns how far everything is; any change of it is progress.
    story : callable
        Returns who waits for whom, for the error.

    Raises
    ------
    SpecError
        If `seconds` is no time.

    Examples
    --------
    >>> patience = Patience(0.01, marks=lambda: (5, 3), story=lambda: "worker:0 has taken 3 of 5 rows")
    >>> time.sleep(0.02)
    >>> patience.look()
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.FeedError: the feed has made no progress for 0.01 s (timeout): worker:0 has taken 3 of 5 \
rows
    """

    def __init__(self, seconds: float, marks: Callable[[], Hashable], story: Callable[[], str]) -> None:
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            raise SpecError(f"timeout={seconds!r}: expected seconds above 0 without any progress")
        self._seconds = seconds
        self._marks = marks
        self._story = story
        self.begin()

    def begin(self) -> None:
        """Start counting anew."""
        self._last = self._marks()
        self._since = time.monotonic()

    def look(self) -> None:
        """Raise `FeedError` if it has been too long."""
        now = self._marks()
        if now != self._last:
            self._last, self._since = now, time.monotonic()
        elif time.monotonic() - self._since > self._seconds:
            raise FeedError(f"the feed has made no progress for {self._seconds:g} s (timeout): {self._story()}")
