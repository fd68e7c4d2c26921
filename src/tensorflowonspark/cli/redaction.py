"""Redaction of reports: secrets, user names, hosts and home directories."""

import getpass
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from tensorflowonspark.config import is_secret

__all__ = ["Redaction"]

# Names of accounts and hosts that show nothing about anybody.
_COMMON = {"root", "spark", "hadoop", "hdfs", "yarn", "livy", "zeppelin", "ubuntu", "debian", "ec2-user", "jovyan",
           "user", "admin", "nobody", "localhost", "localhost.localdomain", "vm", "worker", "master", "driver",
           ""}  # fmt: skip
_IPV4 = r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)"
_IPV6 = r"(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}:?[0-9a-f]{1,4}(?![\w:])"
_ADDRESS = re.compile(f"{_IPV4}|{_IPV6}")
_URL_USER = re.compile(r"(://)[^/\s@,'\"]+@")
_URL_HOST = re.compile(r"(://|@)(?!<|https?:)([A-Za-z0-9][\w.-]*)")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_HOME = re.compile(r"(/home/|/Users/|/user/)(?!<)([^/\s:,;'\"()]+)")
# A name and what may stand between it and its value; names may follow each other, as in `--conf name=value`.
_NAMED = re.compile(r"([\w.-]+)([\"']?\s*[=:]\s*|\s+)")
_REDACTED = "<redacted>"
_QUOTES = ("'", '"')
_LOOPBACK = ("127.", "0.0.0.0", "::1")  # noqa: S104 - names, not bound


class Redaction:
    """Replaces in texts what must not be published; equal names get equal marks, as in ``<host-1>``.

    Parameters
    ----------
    hosts, users : iterable of str
        Names of hosts and users beside those of this machine.
    home : str, optional
        The home directory; by default that of this process.

    Examples
    --------
    >>> redaction = Redaction(hosts=["n1.example.org"], users=["jane"], home="/home/jane")
    >>> redaction.text("hdfs://n1.example.org:8020/data/jane from /home/jane/x and 10.0.0.7")
    'hdfs://<host-1>:8020/data/<user> from ~/x and <host-2>'
    """

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = (), home: str | None = None) -> None:
        self._marks: dict[str, str] = {}
        self._home = home if home is not None else str(Path.home())
        given = [*hosts, socket.getfqdn(), socket.gethostname()]
        names = {*given, *(each.partition(".")[0] for each in given if not _ADDRESS.fullmatch(each))}
        self._hosts = sorted(names - _COMMON, key=lambda name: (-len(name), name))
        self._users = {each for each in (*users, *_own_names()) if each.lower() not in _COMMON}

    def text(self, text: str) -> str:
        """Return a text without secrets, hosts, addresses, user names and home directories."""
        text = _without_secrets(text)
        if len(self._home) > 1:
            text = re.sub(rf"{re.escape(self._home)}(?![\w.-])", "~", text)
        text = _URL_USER.sub(r"\1<redacted>@", text)
        text = _EMAIL.sub("<email>", text)
        text = _HOME.sub(r"\1<user>", text)
        for name in sorted(self._users, key=len, reverse=True):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<user>", text)
        for name in self._hosts:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", lambda match: self._host(match[0]), text)
        text = _ADDRESS.sub(lambda match: self._host(match[0]), text)
        return _URL_HOST.sub(lambda match: match[1] + self._host(match[2]), text)

    def setting(self, name: str, value: str) -> str:
        """Return the value of a setting or variable, which may be a secret or hold one, as Java's options do."""
        return _REDACTED if is_secret(name) else self.text(value)

    def _host(self, name: str) -> str:
        if name.startswith(_LOOPBACK) or name.lower() in _COMMON:
            return name
        return self._marks.setdefault(name, f"<host-{len(self._marks) + 1}>")


def _without_secrets(text: str) -> str:
    """Return a text without the values that follow names of secrets; in doubt, too much is left out."""
    parts, done = [], 0
    for match in _NAMED.finditer(text):
        name, between = match[1], match[2]
        if not is_secret(name) or (between.isspace() and not _takes_next_word(name)):
            continue
        begin, end = _value(text, match)
        if end > max(begin, done):
            parts += [text[done:begin], _REDACTED]
            done = end
    return "".join([*parts, text[done:]])


def _takes_next_word(name: str) -> bool:
    """Return whether a name is followed by its value without a sign between: an option, a header's scheme."""
    return name.startswith("-") or name.lower() in ("bearer", "basic")


def _value(text: str, match: "re.Match[str]") -> tuple[int, int]:
    """Return where the value after a name begins and ends."""
    begin, quote = match.end(), text[match.start() - 1 : match.start()]
    if quote not in _QUOTES or match[2][0] in _QUOTES:  # not of the whole assignment: of the value
        quote = text[begin : begin + 1]
        begin += quote in _QUOTES
    if quote in _QUOTES:
        closing = text.find(quote, begin)
        return begin, closing if closing >= 0 else len(text)
    before = text[: match.start()].rsplit(" ", maxsplit=1)[-1]
    ends = "&" if "?" in before else ""  # a parameter of a URL
    return begin, begin + len(re.split(rf"[\s{ends}]", text[begin:], maxsplit=1)[0])


def _own_names() -> list[str]:
    found = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "HADOOP_USER_NAME", "SPARK_USER")]
    try:
        return [*found, getpass.getuser()]
    except (KeyError, OSError):  # a container's user without an entry in its table
        return found
