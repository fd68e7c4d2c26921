"""Notices that the host goes, at a file or URL that the user names, as clouds and their agents give them."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from threading import Event, Thread

from tensorflowonspark.messages import HostNotice

_CHECK_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_SHOWN = 300  # characters
# What Google's and Azure's servers of metadata want, and others pass over.
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
_NONE = ("", "false", "none")  # contents that say that there is none, as Google's ``instance/preempted``


class HostNotices:
    """Looks for a notice every second, in a thread; calls `send` with each that is new, and when it is withdrawn."""

    def __init__(self, place: str, send: Callable[[HostNotice], None]) -> None:
        self._place = place
        self._send = send
        self._closed = Event()
        Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        last = ""
        while not self._closed.wait(_CHECK_SECONDS):
            with suppress(OSError, ValueError):  # a server that does not answer now says nothing
                found = read_notice(self._place)
                if found != last:
                    last = found
                    self._send(HostNotice(found, seconds_left(found, datetime.now(timezone.utc))))


def read_notice(place: str) -> str:
    """Return what a file or URL says; "" if there is no such file, or the server answers with 404 or ``FALSE``."""
    if "://" in place:
        request = urllib.request.Request(place, headers=_HEADERS)  # noqa: S310 - `settings` lets http alone pass
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
                text = answer.read(_SHOWN).decode(errors="replace").strip()
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                return ""
            raise
        return "" if text.lower() in _NONE else text
    path = Path(place)
    try:
        with path.open(errors="replace") as file:
            return file.read(_SHOWN).strip() or f"{place} is there"
    except FileNotFoundError:
        return ""


def seconds_left(notice: str, now: datetime) -> float | None:
    """Return the seconds until the time that a notice in JSON has as its ``time``; None if it has none.

    Examples
    --------
    >>> now = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    >>> seconds_left('{"action": "terminate", "time": "2026-01-01T12:02:00Z"}', now)
    120.0
    """
    try:
        until = datetime.fromisoformat(str(json.loads(notice)["time"]).replace("Z", "+00:00"))
        return max(0.0, (until - now).total_seconds())
    except (KeyError, TypeError, ValueError):
        return None
