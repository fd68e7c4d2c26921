"""Server-sent events: the state of a page, and its changes, to all pages that are open.

One thread makes each message once for all pages, and ends when no page is open. A page that does not read loses its
connection; it connects again by itself, and gets the whole state.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Event, Lock, Thread
from typing import Any

from tensorflowonspark.driver.dashboard.state import PageState
from tensorflowonspark.terminal import CONSOLE

__all__ = ["Broadcast", "to_json"]

_log = logging.getLogger(__name__)
_PAGES = 32  # that are open at the same time
_WAITING = 8  # messages for a page that is slow to read
_HEARTBEAT_SECONDS = 15.0  # without a message, after which a heartbeat is sent; page.js allows three times as long
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 10.0  # between two messages
_NODES_PER_SECOND = 200
_HEARTBEAT = b"event: heartbeat\ndata: 1\n\n"
_RETRY = b"retry: 2000\n\n"  # milliseconds until a page connects again


def to_json(value: Any) -> str:
    """Return JSON without spaces.

    Raises
    ------
    ValueError
        If a number is not finite.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class Broadcast:
    """Sends the state of a page, and then its changes, to each subscriber.

    Parameters
    ----------
    state : PageState
        The state.
    """

    def __init__(self, state: PageState) -> None:
        self._state = state
        self._lock = Lock()  # of the state and what follows
        self._pages: set[Queue[bytes | None]] = set()
        self._thread: Thread | None = None
        self._closed = Event()

    def subscribe(self) -> Iterator[bytes] | None:
        """Return the events for one page, the first of which has the whole state; None if too many pages are open."""
        return None if self._is_full else self._events()

    @property
    def _is_full(self) -> bool:
        return len(self._pages) >= _PAGES or self._closed.is_set()

    def close(self) -> None:
        """Send the last changes and the end of the cluster to all pages."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            with suppress(Exception):  # the pages have to know the end, whatever else they show
                self._refresh()
            self._send(_event("ended", {}))
            for page in self._pages:
                _put(page, None)
            self._pages = set()

    def _events(self) -> Iterator[bytes]:
        """Yield the events for a page, which is open from the first one on: the headers before it may not reach it."""
        page: Queue[bytes | None] = Queue(_WAITING)
        with self._lock:
            if self._is_full:
                return
            self._refresh()
            page.put(_RETRY + _event("snapshot", self._state.full()))
            self._pages.add(page)
            if self._thread is None:
                self._thread = Thread(target=self._run, daemon=True, name="dashboard")
                self._thread.start()
        try:
            while True:
                try:
                    message = page.get(timeout=_HEARTBEAT_SECONDS)
                except Empty:
                    message = _HEARTBEAT
                if message is None:
                    return
                yield message
        finally:
            with self._lock:
                self._pages.discard(page)

    def _run(self) -> None:
        warned = False
        while not self._closed.wait(self._interval):
            with self._lock:
                if not self._pages:
                    self._thread = None
                    return
                try:
                    self._refresh()
                except Exception as error:  # the training goes on, and so does the page
                    if not warned:
                        text = "the dashboard could not be refreshed: %s: %s"
                        CONSOLE.log(_log, logging.WARNING, text, type(error).__name__, error)
                    warned = True

    @property
    def _interval(self) -> float:
        return min(_MOST_SECONDS, max(_LEAST_SECONDS, self._state.node_count / _NODES_PER_SECOND))

    def _refresh(self) -> None:
        changes = self._state.refresh()
        if changes:
            self._send(_event("update", changes))

    def _send(self, message: bytes) -> None:
        for page in list(self._pages):
            if not _put(page, message):
                self._pages.discard(page)


def _put(page: "Queue[bytes | None]", message: bytes | None) -> bool:
    """Put a message into a page's queue; if that is full, only the end of the page's connection."""
    try:
        page.put_nowait(message)
    except Full:
        while not page.empty():
            page.get_nowait()
        page.put_nowait(None)
        return False
    return True


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {to_json(data)}\n\n".encode()
