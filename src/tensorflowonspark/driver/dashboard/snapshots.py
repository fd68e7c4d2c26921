"""Snapshots of what open pages show: made once for all of them, and by the threads of their requests.

A page asks again and again, with the ETag of what it has. Its request waits until the next snapshot is due, or the end
of the cluster, and is answered with the parts that have changed, each as a whole, or with 304 if none has.
"""

import json
import logging
import time
from collections.abc import Callable
from hashlib import sha256
from http import HTTPStatus
from threading import Event, Lock, Semaphore
from typing import Any

from tensorflowonspark.driver.dashboard.page_server import Response
from tensorflowonspark.terminal import CONSOLE

_log = logging.getLogger(__name__)
_PAGES = 32  # that are open at the same time
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 10.0  # between two snapshots; page.js waits longer for one
_NODES_PER_SECOND = 200
_BACK_SECONDS = 0.5  # until a page that was answered asks again
_TAG_DIGITS = 12


def to_json(value: Any) -> str:
    """Return JSON without spaces.

    A number that is not finite raises `ValueError`.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class Snapshots:
    """Answers the requests of pages for what they show.

    The `state` has the present ``time`` and the columns of the ``nodes`` among its parts.
    """

    def __init__(self, state: Callable[[], dict[str, Any]]) -> None:
        self._state = state
        self._lock = Lock()  # of what follows
        self._parts: dict[str, str] = {}  # their JSON, by tag; and the time
        self._etag = '""'
        self._due = self._answered = 0.0
        self._places = Semaphore(_PAGES)
        self._closed = Event()
        self._warned = False

    def answer(self, known: str) -> Response:
        """Return the parts of the state that a page does not have.

        `known` is the ETag of what it has; empty for nothing.
        """
        if not self._places.acquire(blocking=False):
            text = "Too many pages of this cluster are open: close one\n"
            return Response(text, status=HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            if known == self._etag:
                self._closed.wait(max(0.0, self._due - time.monotonic()))
        finally:
            self._places.release()
        with self._lock:
            has_ended = self._closed.is_set()
            if time.monotonic() >= self._due and not has_ended:
                self._refresh()
            self._answered = time.monotonic()
            headers = {"ETag": self._etag, **({"Ended": "1"} if has_ended else {})}
            if known == self._etag:
                return Response("", status=HTTPStatus.NOT_MODIFIED, headers=headers)
            had = known.strip('"').split(".")
            parts = [text for tag, text in self._parts.items() if tag not in had]
            return Response(f"{{{','.join(parts)}}}", "application/json", headers=headers)

    def close(self) -> None:
        """Answer all pages with the end of the cluster; return once those that are about to ask have had the time."""
        with self._lock:
            self._closed.set()
            self._refresh()
            wait = self._answered + _BACK_SECONDS - time.monotonic()
        time.sleep(max(0.0, wait))

    def _refresh(self) -> None:
        """Make a snapshot, unless nothing has changed but the time."""
        count = 0
        try:
            state = self._state()
            count = len(state["nodes"]["state"])
            texts = {name: f'"{name}":{to_json(value)}' for name, value in state.items()}
            now = texts.pop("time")
            parts = {sha256(text.encode()).hexdigest()[:_TAG_DIGITS]: text for text in texts.values()}
            etag = f'"{".".join(parts)}"'
            if etag != self._etag:
                self._parts, self._etag = {**parts, "time": now}, etag
        except Exception as error:  # the training goes on, and so do the pages
            if not self._warned:
                text = "the dashboard could not be refreshed: %s: %s"
                CONSOLE.log(_log, logging.WARNING, text, type(error).__name__, error)
            self._warned = True
        self._due = time.monotonic() + min(_MOST_SECONDS, max(_LEAST_SECONDS, count / _NODES_PER_SECOND))
