"""Growth: slots that become free, for more workers of a cluster whose number of workers is a range."""

import time
from collections.abc import Callable
from functools import partial
from threading import Thread

from tensorflowonspark.driver.monitor import Monitor

_CHECK_SECONDS = 1.0


def follow_slots(monitor: Monitor, more: Callable[[], int], grow_after: float, grow: Callable[[int], None]) -> None:
    """Call `grow`, in events, with the number of workers for which slots have been free for `grow_after` seconds.

    It is called again and again, and once with 0 when there are no longer any. `more` returns the workers for which
    there are slots now; it is called in a thread until the cluster has ended.
    """
    Thread(target=_follow, args=(monitor, more, grow_after, grow), daemon=True, name="growth").start()


def _follow(monitor: Monitor, more: Callable[[], int], grow_after: float, grow: Callable[[int], None]) -> None:
    sent, history = 0, [(time.monotonic(), 0)]  # when so many were free
    while not monitor.ended:
        time.sleep(min(_CHECK_SECONDS, grow_after))
        now = time.monotonic()
        history.append((now, more()))
        while len(history) > 1 and history[1][0] <= now - grow_after:
            history.pop(0)
        found = min(number for _, number in history) if history[0][0] <= now - grow_after else 0
        if found or sent:
            sent = found
            monitor.inbox.put(partial(grow, found))
