"""An inbox: what the driver knows about its nodes changes by one event after the other.

An event is a call. It comes from a thread that receives messages, from a timer, or from another thread of the driver.
One that comes during another, as from what that calls, is made after it. The other threads read the state between two
events, and wait for conditions on it.

A thread that receives a message makes the call itself: a hand-over to another thread would cost each message of a
stream a third more time until its answer. All other events are made by the inbox's thread, so that no signal interrupts
one.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread
from typing import Any

Event = Callable[[], object]

# A signal that comes as the main thread begins to wait, while another thread takes Python's lock from it, is handled no
# earlier than the wait ends: so the thread looks again from time to time.
_LOOK_SECONDS = 1.0


class Inbox:
    """Events, timers, and the threads that wait for what they change.

    The lock is held during events. It is entered by ``with`` alone: a signal in a method in Python would leave it
    locked. It has an owner for the sake of signals too: while the main thread reads the state, the user's handler of
    one may end the cluster, and wait for that.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self.lock = RLock()
        self._on_error = on_error
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._timers: list[tuple[float, int, Event]] = []  # a heap, by time
        self._numbers = count()
        self._signals: SimpleQueue[None] = SimpleQueue()  # for the thread
        self._bells: list[Lock] = []  # of the threads that wait; each waits until its own is released
        self._closed = False

    def start(self) -> None:
        """Start the thread."""
        Thread(target=self._run, daemon=True, name="monitor").start()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._signals.put(None)

    def put(self, event: Event) -> None:
        """Have the thread make a call; returns at once."""
        self._events.put(event)
        self._signals.put(None)

    def wake(self) -> None:
        """Have waiting threads check their conditions again, after a change elsewhere."""
        self.put(lambda: None)

    def handle(self, event: Event) -> None:
        """Make a call after those that are there; for threads that receive messages, not for events."""
        self._events.put(event)
        self._handle()

    def later(self, seconds: float, event: Event) -> None:
        """Have the thread make a call after some seconds; for events, and before the start."""
        heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), event))
        self._signals.put(None)

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for a condition, which is called under the lock; return whether it holds when the time is over."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            bell = Lock()
            bell.acquire()
            with self.lock:
                if until():
                    return True
                self._bells.append(bell)
            with self._released():
                while not bell.acquire(timeout=min(_LOOK_SECONDS, max(0.0, end - time.monotonic()))):
                    if time.monotonic() >= end:
                        return False

    @contextmanager
    def _released(self) -> Iterator[None]:
        """Release the lock in the block if this thread has it, as in a signal's handler within a condition."""
        lock: Any = self.lock  # with the methods that a Condition needs of it
        held = lock._release_save() if lock._is_owned() else None
        try:
            yield
        finally:
            if held is not None:
                lock._acquire_restore(held)

    def _run(self) -> None:
        while not self._closed:
            rest = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            with suppress(Empty):
                self._signals.get(timeout=rest)
            self._handle()

    def _handle(self) -> None:
        """Make all calls, and wake the threads that wait."""
        with self.lock:
            while (event := self._next()) is not None:
                try:
                    event()
                except Exception as error:
                    self._on_error(error)
            bells, self._bells = self._bells, []
        for bell in bells:
            bell.release()

    def _next(self) -> Event | None:
        """Return the call of a timer whose time has come, or else the first one in the inbox, or None."""
        if self._timers and self._timers[0][0] <= time.monotonic():
            return heappop(self._timers)[2]
        return None if self._events.empty() else self._events.get_nowait()
