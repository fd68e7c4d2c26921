"""Notices that the host goes, at a file or URL that the user names, as clouds and their agents give them."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urljoin

from tensorflowonspark.messages import HostNotice

_CHECK_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_READ, _SHOWN = 1 << 16, 300  # characters
# What Google's and Azure's servers of metadata want, and others pass over.
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
_NONE = ("", "false", "none")  # contents that say that there is none, as Google's ``instance/preempted``
# AWS's server gives answers to those who have put for a token alone, where an instance is configured so (IMDSv2).
_TOKEN = "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}, "X-aws-ec2-metadata-token"
# Azure's lists what happens to all machines of a set, by their names.
_GO = ("Preempt", "Terminate")
_OWN_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


class HostNotices:
    """Looks for a notice every second, in a thread; calls `send` with each that is new, and when it is withdrawn."""

    def __init__(self, place: str, send: Callable[[HostNotice], None]) -> None:
        self._place = place
        self._send = send
        self._headers = dict(_HEADERS)
        self._closed = Event()
        Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        last = ""
        while not self._closed.wait(_CHECK_SECONDS):
            with suppress(OSError, ValueError):  # a server that does not answer now says nothing
                found = read_notice(self._place, self._headers)
                if found != last:
                    last = found
                    self._send(HostNotice(found, seconds_left(found, datetime.now(timezone.utc))))


def read_notice(place: str, headers: dict[str, str] | None = None) -> str:
    """Return what a file or URL says; "" if there is no such file, or the server answers with 404 or ``FALSE``.

    The headers of the request get the token of a server that wants one.
    """
    if "://" in place:
        text = _ask_with_token(place, dict(_HEADERS) if headers is None else headers)
        text = _own_event(place, text)
        return "" if text.lower() in _NONE else text[:_SHOWN]
    path = Path(place)
    try:
        with path.open(errors="replace") as file:
            return file.read(_SHOWN).strip() or f"{place} is there"
    except FileNotFoundError:
        return ""


def _ask_with_token(place: str, headers: dict[str, str]) -> str:
    """Return the answer of a server; "" if it has none. If it wants a token, that is added to the headers."""
    for tries_left in (1, 0):
        try:
            return _ask(place, headers)
        except urllib.error.HTTPError as error:
            if error.code in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                return ""
            if error.code != HTTPStatus.UNAUTHORIZED or not tries_left:
                raise
            path, lifetime, name = _TOKEN
            headers[name] = _ask(urljoin(place, path), lifetime, "PUT")
    return ""


def _ask(place: str, headers: dict[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(place, headers=headers, method=method)  # noqa: S310 - `settings` lets http pass
    with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
        return str(answer.read(_READ).decode(errors="replace").strip())


def _own_event(place: str, text: str) -> str:
    """Return a text; if it is a list of events as Azure has it, the one with which this machine goes, as AWS has it."""
    try:
        listed: Any = json.loads(text)["Events"]
        events = [each for each in listed if each["EventType"] in _GO and each["Resources"]]
    except (KeyError, TypeError, ValueError):
        return text
    name = _ask(urljoin(place, _OWN_NAME), _HEADERS) if events else ""
    for each in events:
        if name in each["Resources"]:
            found = {"action": each["EventType"]}
            with suppress(TypeError, ValueError):  # it has none any more, once it has begun
                found["time"] = parsedate_to_datetime(each.get("NotBefore")).isoformat()
            return json.dumps(found)
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
