"""What the driver has sent to a node about its feeds, until the program asks for it."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread

from tensorflowonspark.feed_messages import (
    FeedBegins,
    FeedComplete,
    FeedId,
    FileFeed,
    PassesEnded,
    RowsCounted,
    Split,
    StepGrant,
)
from tensorflowonspark.messages import NoMoreFeeds, WaitsFor
from tensorflowonspark.node.status import ProgramWaits

FeedMessage = FeedBegins | FeedComplete | NoMoreFeeds | PassesEnded | RowsCounted | StepGrant


@dataclass
class _State:
    """One feed, from Spark or of files."""

    begun: FeedBegins | None = None
    complete: FeedComplete | None = None
    rows: dict[int, int] | None = None  # of files, by worker, once all have counted theirs
    grants: deque[StepGrant] = field(default_factory=deque)  # that the program has not taken
    granted: int = 0  # steps
    takes_steps: bool = True  # false if the stream broke off, or workers take no steps together
    ended: bool = False  # no further step comes
    failed: bool = False
    opened: bool = False  # the program has received it
    passes: Counter[Split] = field(default_factory=Counter)  # that all workers have ended

    @property
    def first(self) -> FeedBegins | FeedComplete | None:
        """The first message about it: a program takes the rows as they arrive even if all have arrived meanwhile."""
        return self.begun or self.complete

    def add(self, grant: StepGrant) -> None:
        """Take a grant that the driver has sent."""
        self.grants.append(grant)
        self.granted += sum(count for count, _ in grant.steps or ())
        self.failed |= bool(grant.failed)
        if grant.steps is None:
            self.takes_steps = False
        else:
            self.ended |= grant.end

    def is_decided(self, step: int) -> bool:
        """Return whether a step is granted, or none will be any more."""
        return self.granted > step or self.ended or not self.takes_steps


class FeedInbox:
    """The messages about each feed; those of the program's threads that need one wait for it."""

    def __init__(self, waits: ProgramWaits) -> None:
        self._waits = waits
        self._feeds: defaultdict[FeedId, _State] = defaultdict(_State)
        self._on_feed: Callable[[FeedBegins | FeedComplete], None] | None = None
        self._no_more = False

    def receive(self, message: FeedMessage) -> None:
        """Take a message of the driver (under the lock)."""
        match message:
            case FeedBegins():
                self._state_of_new(message.feed).begun = message
                self._follow(message)
            case FeedComplete():
                state = self._state_of_new(message.feed)
                state.complete = message
                if state.begun is None:
                    self._follow(message)
            case RowsCounted():
                self._feeds[message.feed].rows = message.rows
            case StepGrant():
                self._feeds[message.feed].add(message)
            case PassesEnded():
                self._feeds[message.feed].passes[message.split] = message.count
            case NoMoreFeeds():
                self._no_more = True

    def _state_of_new(self, feed: FeedId) -> _State:
        """Return the state of a feed; the number of one that failed before the program opened it has another."""
        if self._feeds[feed].failed and not self._feeds[feed].opened:
            del self._feeds[feed]
        return self._feeds[feed]

    def _follow(self, message: FeedBegins | FeedComplete | None) -> None:
        if self._on_feed is not None and message is not None:
            Thread(target=self._on_feed, args=(message,), daemon=True).start()

    def follow(self, on_feed: Callable[[FeedBegins | FeedComplete], None]) -> None:
        """Call a function with the first message about each past and future feed, in separate threads."""
        with self._waits.changed:
            self._on_feed = on_feed
            for each in self._feeds.values():
                self._follow(each.first)

    def wait_for_feed(self, feed: int) -> FeedBegins | FeedComplete | None:
        """Wait for the first message about a feed; return it, or None if no further one comes."""

        def find() -> _State | None:
            state = self._feeds[feed]
            state.opened = state.first is not None or self._no_more
            return state if state.opened else None

        return self._waits.until(find).first

    def wait_for_rows(self, feed: FeedId) -> FeedComplete:
        """Wait until a feed is complete, from Spark or from files; return what all nodes have."""
        return self._waits.until(lambda: self._feeds[feed].complete)

    def arrived(self, feed: FeedId) -> FeedComplete | None:
        """Return what all nodes have of a feed; None as long as rows arrive."""
        return self._feeds[feed].complete

    def wait_for_counts(self, feed: FileFeed) -> dict[int, int]:
        """Wait until all workers have counted their rows of some files; return the numbers."""
        return self._waits.until(lambda: self._feeds[feed].rows)

    def counts(self, feed: FileFeed) -> dict[int, int] | None:
        """Return the rows of some files; None until all workers have counted theirs."""
        return self._feeds[feed].rows

    def wait_for_grant(self, feed: FeedId, seconds: float | None = None) -> StepGrant | None:
        """Return the next `StepGrant` of a stream; None if there is none within `seconds`."""

        def find() -> StepGrant | None:
            grants = self._feeds[feed].grants
            return grants.popleft() if grants else None

        return self._waits.at_most(seconds, find, WaitsFor.ROWS)

    def wait_for_step(self, feed: FeedId, step: int | None) -> int | None:
        """Wait until a step of a stream, if any, is granted, or the stream ends; return the steps granted so far.

        None: the workers take no steps together, or the stream broke off.
        """

        def find() -> _State | None:
            state = self._feeds[feed]
            return state if step is None or state.is_decided(step) else None

        state = self._waits.until(find, WaitsFor.ROWS)
        return state.granted if state.takes_steps else None

    def break_off(self, feed: FeedId, reason: str) -> None:
        """End a stream after the steps that are granted, since this node can't get its further rows."""
        with self._waits.changed:
            self.receive(StepGrant(feed, end=True, failed=reason))
            self._waits.changed.notify_all()

    def passes(self, feed: FeedId, split: Split) -> int:
        """Return the number of passes over a split that all workers have ended."""
        return self._feeds[feed].passes[split]
