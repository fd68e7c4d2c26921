"""What a node knows of one feed from the driver's messages."""

from collections import Counter, deque
from dataclasses import dataclass, field

from tensorflowonspark.feed_messages import FeedBegins, FeedComplete, Split, StepGrant


@dataclass
class FeedState:
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
