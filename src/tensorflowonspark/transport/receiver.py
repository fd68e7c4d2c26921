"""One thread that receives the messages of many channels: a driver has one of each of its nodes."""

import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

from tensorflowonspark.transport.channel import Channel
from tensorflowonspark.transport.pickled import ConnectionLost

_TURN = 100  # messages of a channel, after which the others have theirs


@dataclass(frozen=True)
class Listener:
    """What is called for a channel whose messages a `Receiver` takes: it must not wait for long.

    `on_end` is called once, after the last message.
    """

    on_message: Callable[[Any], None]
    on_end: Callable[[], None]


class Receiver:
    """Receives from any number of channels in one thread, which lives until `close` and the ends of all of them.

    `on_error` takes an error of a listener, which ends its channel.
    """

    def __init__(self, on_error: Callable[[Exception], object]) -> None:
        self._on_error = on_error
        self._added: SimpleQueue[tuple[Channel, Listener]] = SimpleQueue()
        self._listening: dict[Channel, tuple[Listener, Iterator[Any]]] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lock = threading.Lock()  # of what follows
        self._closed = self._ended = False
        self._process = os.getpid()
        threading.Thread(target=self._run, name="receiver", daemon=True).start()

    def add(self, channel: Channel, listener: Listener) -> None:
        """Receive from a channel from now on; nobody else does."""
        with self._lock:
            if not self._ended:
                self._added.put((channel, listener))
                self._wake()
                return
        listener.on_end()

    def close(self) -> None:
        """End the thread once the channels have ended, which is up to their owner."""
        with self._lock:
            self._closed = True
            self._wake()

    def _wake(self) -> None:
        if self._process == os.getpid() and not self._ended:  # a forked child has the sockets, but not the thread
            self._waker.send(b"\0")

    def _run(self) -> None:
        unread: list[Channel] = []  # of which more is there than a turn takes
        while not self._has_ended():
            ready = self._selector.select(0 if unread else None)
            turns = [key.data for key, _ in ready if key.data is not None]
            if len(turns) < len(ready):
                self._woken.recv(4096)
                turns += self._take_added()
            turns += [each for each in unread if each not in turns]
            unread = [each for each in turns if self._receive(each)]
        for each in (self._selector, self._woken, self._waker):
            each.close()

    def _has_ended(self) -> bool:
        with self._lock:
            self._ended = self._closed and not self._listening and self._added.empty()
            return self._ended

    def _take_added(self) -> Iterator[Channel]:
        """Yield the channels that were added; some of their messages may have been received already."""
        while True:
            try:
                channel, listener = self._added.get_nowait()
            except Empty:
                return
            self._listening[channel] = listener, channel.arriving()
            self._selector.register(channel, selectors.EVENT_READ, channel)
            yield channel

    def _receive(self, channel: Channel) -> bool:
        """Take the messages of a channel that have come; return whether there may be more."""
        listener, messages = self._listening[channel]
        try:
            for message in islice(messages, _TURN):
                if message is None:
                    return False
                listener.on_message(message)
        except ConnectionLost:
            self._end(channel)
        except Exception as error:
            self._on_error(error)
            self._end(channel)
        else:
            return True
        return False

    def _end(self, channel: Channel) -> None:
        self._selector.unregister(channel)
        listener, _ = self._listening.pop(channel)
        try:
            listener.on_end()
        except Exception as error:
            self._on_error(error)
