"""The feeds of a run, and which of them a restart of all nodes feeds again.

The programs of a new attempt continue from their last checkpoint. They report in which feed they wrote it: that one and
all later ones are fed again, under their old numbers; without a checkpoint all are.
"""

from collections.abc import Mapping

from tensorflowonspark.driver.feed.job import FeedRequest


class FeedHistory:
    """The feeds of one run, in the order of their numbers.

    Examples
    --------
    >>> history = FeedHistory()
    >>> for request in (FeedRequest("first"), FeedRequest("second")):
    ...     history.add(request)
    >>> history.needed({"/checkpoints": 1})
    (1, True)
    >>> history.restart({"/checkpoints": 1}, 1)
    >>> [request.data for request in history.left]
    ['second']
    """

    def __init__(self) -> None:
        self._feeds: list[FeedRequest | None] = []  # None: a stream, whose rows do not come again
        self.saved: dict[str, int] = {}  # as of a `Roster`, by the attempts before this one
        self.done = 0  # feeds that the programs of this attempt are done with, from the first one
        self.repeatable = True  # the rows of the feed that is under way come again
        self.streams = False  # several DataFrames are fed, one after the other, that Spark has only once

    def add(self, request: FeedRequest | None) -> None:
        """Add a feed with which the programs are done, or that the tasks send which hold the nodes; None: a stream."""
        self._feeds.append(request)

    @property
    def first(self) -> FeedRequest | None:
        """The first feed, unless it was a stream or there was none."""
        return self._feeds[0] if self._feeds else None

    @property
    def left(self) -> list[FeedRequest]:
        """The former feeds that the programs of this attempt have not had."""
        left = self._feeds[self.done :]
        assert None not in left  # else no restart would have followed
        return [request for request in left if request is not None]

    def needed(self, saved: Mapping[str, int]) -> tuple[int, bool]:
        """Return the first feed that a restart needs, and whether it can have all rows from there on again.

        `saved` is the feed of each last checkpoint of this attempt, by its directory.
        """
        known = {**self.saved, **saved}
        needed = min(known.values(), default=0)
        in_its_midst = bool(known) and needed >= len(self._feeds)  # of the feed that is under way
        return needed, None not in self._feeds[needed:] and (self.repeatable or not in_its_midst)

    def restart(self, saved: Mapping[str, int], needed: int) -> None:
        """Begin another attempt, whose programs have had the feeds before the first that is needed."""
        self.saved.update(saved)
        self.done = needed
