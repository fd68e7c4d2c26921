"""Redaction of reports: beside secrets, user names, hosts and home directories."""

import getpass
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from tensorflowonspark.secrecy import shown_value, without_secrets

# Names of accounts and hosts that show nothing about anybody.
_COMMON = {"root", "spark", "hadoop", "hdfs", "yarn", "livy", "zeppelin", "ubuntu", "debian", "ec2-user", "jovyan",
           "user", "admin", "nobody", "localhost", "localhost.localdomain", "vm", "worker", "master", "driver",
           ""}  # fmt: skip
_IPV4 = r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)"
_IPV6 = r"(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}:?[0-9a-f]{1,4}(?![\w:])"
_ADDRESS = re.compile(f"{_IPV4}|{_IPV6}")
_URL_HOST = re.compile(r"(://|@)(?!<|https?:)([A-Za-z0-9][\w.-]*)")
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_HOME = re.compile(r"(/home/|/Users/|/user/)(?!<)([^/\s:,;'\"()]+)")
_LOOPBACK = ("127.", "0.0.0.0", "::1")  # noqa: S104 - names, not bound


class Redaction:
    """Replaces in texts what must not be published; equal names get equal marks, as in ``<host-1>``.

    Hosts and users are those beside this machine's; the home is by default that of this process.

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
        return self._without_names(without_secrets(text))

    def setting(self, name: str, value: str) -> str:
        """Return the value of a setting or variable, which may be a secret or hold one, as Java's options do."""
        return self._without_names(shown_value(name, value))

    def _without_names(self, text: str) -> str:
        if len(self._home) > 1:
            text = re.sub(rf"{re.escape(self._home)}(?![\w.-])", "~", text)
        text = _EMAIL.sub("<email>", text)
        text = _HOME.sub(r"\1<user>", text)
        for name in sorted(self._users, key=len, reverse=True):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<user>", text)
        for name in self._hosts:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", lambda match: self._host(match[0]), text)
        text = _ADDRESS.sub(lambda match: self._host(match[0]), text)
        return _URL_HOST.sub(lambda match: match[1] + self._host(match[2]), text)

    def _host(self, name: str) -> str:
        if name.startswith(_LOOPBACK) or name.lower() in _COMMON:
            return name
        return self._marks.setdefault(name, f"<host-{len(self._marks) + 1}>")


def _own_names() -> list[str]:
    found = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "HADOOP_USER_NAME", "SPARK_USER")]
    try:
        return [*found, getpass.getuser()]
    except (KeyError, OSError):  # a container's user without an entry in its table
        return found
