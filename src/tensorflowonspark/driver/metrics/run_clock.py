"""The time of a run, from its first attempt to its end, and what is done in each second of it."""

import time
from collections.abc import Callable
from threading import Event, Thread

_SECONDS = 1.0


class RunClock:
    """Measures a run, and calls a function once a second while it lasts."""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._begun: float | None = None
        self._ended: float | None = None
        self._over = Event()

    def begin(self, tick: Callable[[], None]) -> None:
        """Begin, unless that was done; `tick` is called in a thread of its own."""
        if self._begun is None:
            self._begun = self._read()
            Thread(target=self._run, args=(tick,), daemon=True, name="metrics").start()

    def end(self) -> bool:
        """End; return False if that was done before."""
        if self._over.is_set():
            return False
        self._over.set()
        self._ended = self._read()
        return True

    def now(self) -> float:
        """Return the time, by default on ``time.monotonic()``, or that of the end."""
        return self._read() if self._ended is None else self._ended

    @property
    def seconds(self) -> float:
        """How long it has taken so far; 0 before it begins."""
        return 0.0 if self._begun is None else self.now() - self._begun

    def _run(self, tick: Callable[[], None]) -> None:
        while not self._over.wait(_SECONDS):
            tick()
