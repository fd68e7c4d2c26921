"""Progress of a feed: the time-out without any, and the description of rows that a node holds."""

import time
from collections.abc import Callable, Hashable, Sequence

from tensorflowonspark.errors import FeedError
from tensorflowonspark.settings import check_seconds

_NAMED_PARTITIONS = 8  # more are counted


def describe_rows(partitions: Sequence[int], feed: int, rows: int) -> str:
    """Return a description of the rows that a node holds.

    Examples
    --------
    >>> describe_rows([1, 3], 0, 2000)
    'partitions 1 and 3 of feed 0 (2,000 rows)'
    """
    if not rows:
        return ""
    names = [str(partition) for partition in partitions]
    if not names or len(names) > _NAMED_PARTITIONS:
        which = f"rows of {len(names)} partitions" if names else "rows"
    else:
        listed = ", ".join(names[:-1])
        which = f"partitions {listed} and {names[-1]}" if listed else f"partition {names[-1]}"
    return f"{which} of feed {feed} ({rows:,} rows)"


def describe_others(had: tuple[int, int], has: tuple[int, int]) -> str:
    """Return what a partition has in place of other rows, given the numbers of rows and their checksums.

    Examples
    --------
    >>> describe_others((1000, 7), (999, 8)), describe_others((1000, 7), (1000, 8))
    ('999', 'others, or the same in another order,')
    """
    return f"{has[0]:,}" if had[0] != has[0] else "others, or the same in another order,"


class ProgressTimeout:
    """A time-out that counts from the last progress.

    Any change of what `progress` returns is progress; `describe` returns which process waits for which, for the error.

    Examples
    --------
    >>> timeout = ProgressTimeout(0.01, progress=lambda: (5, 3), describe=lambda: "worker:0 has taken 3 of 5 rows")
    >>> time.sleep(0.02)
    >>> timeout.check()
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.FeedError: the feed has made no progress for 0.01 s (timeout): worker:0 has taken 3 of 5 \
rows
    """

    def __init__(self, seconds: float, progress: Callable[[], Hashable], describe: Callable[[], str]) -> None:
        self._seconds = check_seconds("timeout", seconds)
        self._progress = progress
        self._describe = describe
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._last = self._progress()
        self._since = time.monotonic()

    def check(self) -> None:
        """Raise `FeedError` if there has been no progress for too long."""
        now = self._progress()
        if now != self._last:
            self._last, self._since = now, time.monotonic()
        elif time.monotonic() - self._since > self._seconds:
            raise FeedError(f"the feed has made no progress for {self._seconds:g} s (timeout): {self._describe()}")
