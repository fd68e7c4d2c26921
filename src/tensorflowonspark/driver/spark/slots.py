"""Slots of a Spark application for its clusters: one ledger per application, and parts of it that are reserved.

A reservation holds slots for whatever a thread starts: its clusters share these slots alone. Threads find their
reservation in a context variable; those that Spark's own libraries start, as `CrossValidator` does, in a local property
of Spark, which they inherit.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from tensorflowonspark.driver.spark.ledger import Lease, SlotLedger, SlotRequest
from tensorflowonspark.driver.spark.resources import allocates_dynamically, count_slots, find_slots, most_slots
from tensorflowonspark.errors import ClusterError, RequirementError, SlotsError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile

_PROPERTY = "tensorflowonspark.reservation"
_lock = threading.Lock()
_ledgers: "WeakKeyDictionary[Any, SlotLedger]" = WeakKeyDictionary()  # by SparkContext
_reservations: "WeakValueDictionary[str, Reservation]" = WeakValueDictionary()
_current: "ContextVar[Reservation | None]" = ContextVar("reservation", default=None)


class Reservation:
    """Slots for the clusters of one thread, and of the threads that Spark's libraries start for it.

    `follow` is called with the `ClusterRun` of each cluster that draws from them, when it is made. `about` returns what
    identifies these clusters in the lines of the console, as ``{"trial": 3}``.
    """

    def __init__(
        self,
        lease: Lease,
        follow: Callable[[Any], None] = lambda _: None,
        about: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self._lease = lease
        self.follow = follow
        self.about = about
        self.name = lease.request.name
        self.count = lease.count
        self.ledger = SlotLedger(self.name)

    def release(self) -> None:
        """Give the slots back."""
        self._lease.release()


@contextmanager
def reserved(context: "SparkContext | None", reservation: Reservation) -> Iterator[None]:
    """Have the clusters that this thread starts in the block take the slots of a reservation; release it at the end."""
    key = f"{id(reservation)}-{threading.get_ident()}"
    token = _current.set(reservation)
    _reservations[key] = reservation
    try:
        if context is not None:
            context.setLocalProperty(_PROPERTY, key)
        yield
    finally:
        _current.reset(token)
        _reservations.pop(key, None)
        reservation.release()
        if context is not None:
            with suppress(Exception):  # the application has ended
                context.setLocalProperty(_PROPERTY, None)


class ApplicationSlots:
    """The slots of a running application, as the clusters of one resource profile see them."""

    def __init__(self, context: "SparkContext", profile: "ResourceProfile | None" = None) -> None:
        self._context = context
        self._profile = profile

    @property
    def ledger(self) -> SlotLedger:
        """The application's ledger."""
        with _lock:
            return _ledgers.setdefault(self._context, SlotLedger())

    def capacity(self) -> int:
        """Return the slots that there are; under dynamic allocation, the most that Spark may allocate."""
        return self._count(self._profile)

    def share(self) -> int:
        """Return the slots that clusters of this thread can share: the present ones, or those of its reservation.

        Under dynamic allocation with a limit, the most that Spark may allocate.
        """
        reservation = self.reservation()
        if reservation is not None:
            return reservation.count
        count = self.capacity()
        if count == sys.maxsize:
            with _ended_applications(self._context):
                return count_slots(self._context, self._profile)
        return count

    def require(self, needed: int, timeout: float) -> None:
        """Wait for executors that have not registered yet.

        If there are fewer when the time-out in seconds is over, or this thread holds them itself, it raises
        `SlotsError`.
        """
        if self.reservation() is None and (not self._is_dynamic() or needed > self.capacity()):
            find_slots(self._context, needed, needed, timeout, 0, self._profile)
        own = self.ledger.held(threading.get_ident())
        free = self.capacity() - sum(each.count for each in own)
        if free < needed:
            names = ", ".join(each.request.name for each in own)
            raise SlotsError(needed, max(0, free), f"{names} of the same thread has the others: end it first")

    def acquire(self, name: str, needed: int, wanted: int, check: Callable[[], object]) -> Lease:
        """Wait for slots: those of this thread's reservation, or else any of the application.

        What `check` raises ends the wait. If the reservation has fewer, or the wait could never end, it raises
        `SlotsError`, and `ClusterError` if the application ends meanwhile.
        """
        reservation = self.reservation()
        if reservation is not None:
            if needed > reservation.count:
                advice = f"that is what {reservation.name} has reserved; reserve more (num_workers of tfos.tune)"
                raise SlotsError(needed, reservation.count, advice)
            own = SlotRequest(name, needed, min(wanted, reservation.count), lambda: reservation.count, check=check)
            return reservation.ledger.acquire(own)
        return self.ledger.acquire(self.request(name, needed, wanted, check))

    def request(self, name: str, needed: int, wanted: int, check: Callable[[], object]) -> SlotRequest:
        """Return a request for slots of the application."""
        if self._profile is None:
            return SlotRequest(name, needed, wanted, self.capacity, check=check)
        pool = int(self._profile.id)
        shared = None if self._is_dynamic() else lambda: self._count(None)  # else they have executors of their own
        return SlotRequest(name, needed, wanted, self.capacity, pool, shared, check)

    def reservation(self) -> Reservation | None:
        """Return the reservation of the present thread, if it has one."""
        found = _current.get()
        if found is not None or getattr(self._context, "_jsc", None) is None:
            return found
        with suppress(Exception):  # the application has ended, which is noticed elsewhere
            key = self._context.getLocalProperty(_PROPERTY)
            return _reservations.get(key) if key else None
        return None

    def _is_dynamic(self) -> bool:
        with _ended_applications(self._context):
            return allocates_dynamically(self._context)

    def _count(self, profile: "ResourceProfile | None") -> int:
        with _ended_applications(self._context):
            present = count_slots(self._context, profile)
            return most_slots(self._context, profile, present) if allocates_dynamically(self._context) else present


@contextmanager
def _ended_applications(context: "SparkContext") -> Iterator[None]:
    """Raise `ClusterError` in place of what Spark raises when the application has ended."""
    try:
        yield
    except RequirementError:
        raise
    except Exception as error:
        text = "the Spark application has ended while a cluster asked for its task slots"
        if getattr(context, "_jsc", None) is None:
            raise ClusterError(text) from None
        raise ClusterError(f"{text}, or can't be reached ({type(error).__name__})") from error
