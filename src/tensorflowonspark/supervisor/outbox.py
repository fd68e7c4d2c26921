"""Messages of a supervisor to its node or to the driver, written by a thread: either may read none for a long time."""

import math
from collections.abc import Callable
from functools import partial

from tensorflowonspark.messages import Heartbeat, NodeUsage
from tensorflowonspark.terminal import Writer

_SIGNS_OF_LIFE = (Heartbeat, NodeUsage)  # as any other message is
_MOST_WAITING = 100  # messages, beyond which a thread waits that can


class Outbox:
    """Writes messages in their order, without a wait for whoever sends them.

    If the other side has ended, `write` raises `OSError`, which is noticed elsewhere; what else it raises, the next
    `send` does.
    """

    def __init__(self, write: Callable[[object], None]) -> None:
        self._write = write
        self._writer = Writer(lost_seconds=math.inf)
        self._error: Exception | None = None

    def send(self, message: object) -> None:
        """Send a message; a sign of life is dropped while others wait to be read."""
        if self._error is not None and not isinstance(self._error, OSError):
            raise self._error
        if not isinstance(message, _SIGNS_OF_LIFE) or not self._writer.count:
            self._writer.put(partial(self._try, message))

    def wait_for_room(self) -> None:
        """Wait while very many messages are waiting."""
        self._writer.drain(math.inf, _MOST_WAITING)

    def close(self, seconds: float) -> bool:
        """Wait at most so many seconds until all is written; return whether it is."""
        return self._writer.drain(seconds)

    def _try(self, message: object) -> None:
        try:
            if self._error is None:
                self._write(message)
        except Exception as error:
            self._error = error
