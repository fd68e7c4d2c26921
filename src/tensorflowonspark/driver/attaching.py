"""The server of ``tfos attach``: a private Unix socket on the driver's host, for terminals of the same user alone."""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from tensorflowonspark.driver.breakpoints import Breakpoints
from tensorflowonspark.errors import StartError
from tensorflowonspark.processes import place
from tensorflowonspark.supervisor.outbox import Outbox
from tensorflowonspark.transport import (
    Channel,
    Credentials,
    Listener,
    Server,
    connect,
    new_credentials,
    short_path,
)
from tensorflowonspark.user_cache import read_own, user_cache

_PART = "attach"  # of the user's cache


@dataclass(frozen=True)
class Waiting:
    """The first message to a terminal: the cluster's name, and where its nodes wait."""

    cluster: str
    places: dict[str, str]


@dataclass(frozen=True)
class Attach:
    """A terminal's request for a node."""

    node: str


@dataclass(frozen=True)
class Typed:
    """A line that was typed in the terminal; None at the end of its input."""

    line: str | None


class AttachServer:
    """Listens from its start on, until `close`.

    The socket and the file that names it, with a token of their own, are in a directory of the user's cache that nobody
    else can enter. Whoever can read them is this user on this host, who could change the driver's process anyway.

    Without such a directory it raises `StartError`.
    """

    def __init__(self, name: str, breakpoints: Callable[[], Breakpoints]) -> None:
        self._name = name
        self._breakpoints = breakpoints
        self._owner = os.getpid()
        self._channels: set[Channel] = set()
        credentials = new_credentials()
        try:
            path = user_cache(_PART) / f"{self._owner}-{secrets.token_hex(4)}.json"
            self._files = [path, path.with_suffix(".socket")]
            self._server = Server(short_path(self._files[1]), credentials, on_channel=self._open)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
                json.dump({"place": place(), "pid": self._owner, "credentials": credentials.to_text()}, file)
        except (OSError, RuntimeError) as error:
            raise StartError(
                f"breakpoints=True: the driver can't listen for tfos attach in the user's cache ({error}): set "
                "XDG_CACHE_HOME to a directory that only this user can write to"
            ) from error

    def _open(self, channel: Channel) -> Listener:
        outbox, chosen = Outbox(channel.send), [""]
        show = outbox.send
        self._channels.add(channel)
        show(Waiting(self._name, self._breakpoints().places()))

        def take(message: object) -> None:
            if isinstance(message, Attach):
                chosen[0] = message.node
                self._breakpoints().attach(message.node, show)
            elif isinstance(message, Typed):
                self._breakpoints().type(chosen[0], show, message.line)

        def end() -> None:
            self._channels.discard(channel)
            self._breakpoints().detach(chosen[0], show)

        return Listener(take, end)

    def close(self) -> None:
        """End the terminals and stop; a forked child of the driver does nothing."""
        if os.getpid() != self._owner:
            return
        for each in self._files:
            with suppress(OSError):
                each.unlink(missing_ok=True)
        for channel in list(self._channels):
            channel.close()
        self._server.close()


def open_clusters() -> Iterator[tuple[Channel, Waiting]]:
    """Yield a connection to each cluster of this user on this host that takes terminals, with its first message.

    What a killed driver has left is removed. Other hosts and containers may have the same home.

    If the user's cache is not private, or can't be made, it raises `OSError` or `RuntimeError`.
    """
    for path in sorted(user_cache(_PART).glob("*.json")):
        socket = path.with_suffix(".socket")
        with suppress(OSError, KeyError, TypeError, ValueError):  # ConnectionLost is an OSError
            about = json.loads(read_own(path))
            if about["place"] != place():
                continue
            if not psutil.pid_exists(about["pid"]):
                for each in (path, socket):
                    each.unlink(missing_ok=True)
                continue
            channel = connect(short_path(socket), Credentials.from_text(about["credentials"])).channel()
            yield channel, channel.receive()
