"""Messages of a supervisor to its node or to the driver, written by a thread: either may read none for a long time."""

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from tensorflowonspark.messages import Heartbeat, NodeUsage

__all__ = ["Outbox"]

_SIGNS_OF_LIFE = (Heartbeat, NodeUsage)  # as any other message is
_MOST_WAITING = 100  # messages, beyond which a thread waits that can
_ROOM_SECONDS = 0.01  # between two looks for room


class Outbox:
    """Writes messages in their order, without a wait for whoever sends them.

    Parameters
    ----------
    write : callable
        Writes a message, and raises `OSError` if the other side has ended, which is noticed elsewhere; what else it
        raises, the next `send` does.
    """

    def __init__(self, write: Callable[[object], None]) -> None:
        self._write = write
        self._waiting: SimpleQueue[object] = SimpleQueue()  # None: the end
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        """Send a message; a sign of life is dropped while others wait to be read."""
        if self._error is not None:
            raise self._error
        if not isinstance(message, _SIGNS_OF_LIFE) or self._waiting.empty():
            self._waiting.put(message)

    def wait_for_room(self) -> None:
        """Wait while very many messages are waiting."""
        while self._waiting.qsize() > _MOST_WAITING and self._thread.is_alive():
            time.sleep(_ROOM_SECONDS)

    def close(self, seconds: float) -> bool:
        """Wait at most so many seconds until all is written; return whether it is."""
        self._waiting.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (message := self._waiting.get()) is not None:
                self._write(message)
        except OSError:
            pass
        except Exception as error:
            self._error = error
