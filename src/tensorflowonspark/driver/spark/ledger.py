"""Task slots that the clusters of one application share: taken all at once, in the order in which they were asked for.

It counts only the slots of clusters. Other Spark jobs take theirs when Spark gives them some, and give them back.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, RLock
from weakref import ReferenceType, ref

from tensorflowonspark.errors import SlotsError
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)
_CHECK_SECONDS = 0.2  # between two looks at the executors, and at whether the wait is still wanted
_FIRST_REPORT_SECONDS, _REPORT_SECONDS = 5.0, 300.0
_NAMES = 5  # of holders in one message


@dataclass(frozen=True)
class SlotRequest:
    """What a cluster asks for."""

    name: str  # of the cluster, for messages
    needed: int  # the fewest
    wanted: int  # and the most
    capacity: Callable[[], int]  # returns the slots that there are at present, held ones included
    pool: int | None = None  # the profile whose executors `capacity` counts; None: those of any task
    # For tasks of a profile that run on the executors of all others: returns the slots of any task.
    shared: Callable[[], int] | None = None
    check: Callable[[], object] = lambda: None  # called time and again during the wait; what it raises ends it


@dataclass(eq=False)
class Lease:
    """Slots that are held until `release`."""

    ledger: "SlotLedger" = field(repr=False)
    request: SlotRequest
    count: int  # 0 once they are released
    waited: bool = False  # another lease had to end before
    thread: int = field(default_factory=threading.get_ident)  # that has asked for them
    since: float = field(default_factory=time.monotonic)

    def release(self) -> None:
        """Give all slots back; a second call does nothing."""
        self.ledger._resize(self, 0)

    def shrink(self, count: int) -> None:
        """Keep only so many."""
        self.ledger._resize(self, min(count, self.count))

    def grow(self, wanted: int) -> None:
        """Take free slots too, up to so many in all, unless others wait for them."""
        self.ledger._grow(self, wanted)

    def limit(self) -> int:
        """Return how many slots there are at present besides those of other leases."""
        return self.ledger._free(self.request, self)


@dataclass(eq=False)
class _Ticket:
    """A place in the queue."""

    request: SlotRequest
    thread: int = field(default_factory=threading.get_ident)


class SlotLedger:
    """Grants slots to one request after the other.

    A request takes all its slots at once or none, so none waits with a part of them; and no later one overtakes it, so
    a large one is not kept waiting for ever by small ones.
    """

    def __init__(self, where: str = "the Spark application") -> None:
        self._where = where
        self._lock = RLock()  # entered itself, as in `Monitor`, so that a signal can't leave it locked
        self._changed = Condition(self._lock)
        self._granted: list[ReferenceType[Lease]] = []  # weak: a lease that nobody can release any more is none
        self._queue: list[_Ticket] = []

    def acquire(self, request: SlotRequest) -> Lease:
        """Wait for free slots and take them: the wanted ones, or as many of them as are free and at least those needed.

        If no other lease is left, the request is granted whatever the capacity: nothing that it could wait for here
        will change it.

        A wait that could never end, because threads that wait hold the slots that are missing, is a `SlotsError`.
        """
        ticket = _Ticket(request)
        begin, report, waited = time.monotonic(), _FIRST_REPORT_SECONDS, False
        with self._lock:
            self._queue.append(ticket)
        try:
            while True:
                with self._lock:
                    if self._queue[0] is ticket:
                        lease = self._grant(request, waited)
                        if lease is not None:
                            return lease
                    if self._victim() is ticket:
                        raise self._stuck(ticket)
                    waited = True
                    seconds = time.monotonic() - begin
                    text = self._describe_wait(ticket, seconds) if seconds > report else ""
                    if not text:
                        self._changed.wait(_CHECK_SECONDS)
                if text:
                    report += _REPORT_SECONDS
                    CONSOLE.log(_log, logging.WARNING, "%s", text)
                request.check()
        finally:
            with self._lock:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def held(self, thread: int | None = None) -> list[Lease]:
        """Return the leases at present: all, or those that a thread has asked for."""
        with self._lock:
            return [each for each in self._leases if thread in (None, each.thread)]

    # ---- under the lock

    @property
    def _leases(self) -> list[Lease]:
        found = ((lease, each) for each in self._granted if (lease := each()) is not None and lease.count)
        leases = dict(found)
        self._granted = list(leases.values())
        return list(leases)

    def _grant(self, request: SlotRequest, waited: bool) -> Lease | None:
        """Return a lease for the first request of the queue, if it can have one."""
        count = request.wanted
        if self._leases:
            count = min(count, self._free(request))
            if count < request.needed:
                return None
        lease = Lease(self, request, count, waited)
        self._granted.append(ref(lease))
        return lease

    def _free(self, request: SlotRequest, own: Lease | None = None) -> int:
        """Return the slots that no lease holds, apart from one of the request's own."""
        with self._lock:
            others = [each for each in self._leases if each is not own]
        free = request.capacity() - sum(each.count for each in others if each.request.pool == request.pool)
        if request.shared is not None:
            free = min(free, request.shared() - sum(each.count for each in others if _is_on_all(each)))
        elif request.pool is None:
            free -= sum(each.count for each in others if each.request.shared is not None)
        return free

    def _resize(self, lease: Lease, count: int) -> None:
        with self._lock:
            lease.count = count
            self._changed.notify_all()

    def _grow(self, lease: Lease, wanted: int) -> None:
        with self._lock:
            if not self._queue and lease.count:
                lease.count = max(lease.count, min(wanted, self._free(lease.request, lease)))

    # ---- waits that can't end

    def _victim(self) -> _Ticket | None:
        """Return the request to refuse: the last one whose thread holds slots, if the first one needs some of those.

        A thread that waits here does not end the clusters that it has started before.
        """
        first = self._queue[0].request
        waiting = {each.thread for each in self._queue}
        locked = sum(each.count for each in self._leases if each.thread in waiting)
        if not locked or first.needed + locked <= max(first.capacity(), first.needed):
            return None
        holders = {each.thread for each in self._leases}
        return next((each for each in reversed(self._queue) if each.thread in holders), None)

    def _stuck(self, ticket: _Ticket) -> SlotsError:
        request = ticket.request
        own = [each for each in self._leases if each.thread == ticket.thread]
        names = _join([each.request.name for each in own])
        count = sum(each.count for each in own)
        return SlotsError(
            request.needed,
            max(0, self._free(request)),
            f"{names} of the same thread {'has' if len(own) == 1 else 'have'} {count} more, and would not end while "
            f"{request.name} waits for them: end {'it' if len(own) == 1 else 'them'} first, take fewer nodes, or ask "
            "Spark for more slots",
        )

    def _describe_wait(self, ticket: _Ticket, seconds: float) -> str:
        now, request = time.monotonic(), ticket.request
        holders = [f"{each.request.name} ({each.count} slots for {now - each.since:.0f} s)" for each in self._leases]
        before = self._queue.index(ticket)
        queue = f"; {before} {'request comes' if before == 1 else 'requests come'} before it" if before else ""
        return (
            f"{request.name} has waited {seconds:.0f} s for {request.needed} of the {request.capacity()} task slots of "
            f"{self._where}, held by {_join(holders) or 'no cluster'}{queue}"
        )


def _is_on_all(lease: Lease) -> bool:
    """Whether a lease's tasks run on the executors of any task."""
    return lease.request.pool is None or lease.request.shared is not None


def _join(names: list[str]) -> str:
    more = len(names) - _NAMES
    return ", ".join([*names[:_NAMES], *([f"{more} more"] if more > 0 else [])])
