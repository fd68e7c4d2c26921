"""The state of all nodes under signals that end what the main thread does."""

import signal
import time
from threading import Event, Thread

import pytest

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.driver.console import ConsoleReporter
from tensorflowonspark.driver.monitor import Monitor


class Interrupted(BaseException):
    """What the handler of a signal raises."""


@pytest.fixture
def interrupting():
    """Raise Interrupted in this thread soon after `signal.setitimer` was called."""

    def interrupt(_number, _frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(60, method="thread")  # the other one uses the same timer
def test_a_signal_never_leaves_the_state_locked(interrupting):
    """Other threads go on after a signal, wherever it has interrupted a waiting main thread."""
    monitor = Monitor(ClusterSpec(num_workers=2), "id", ConsoleReporter(), 30.0)
    ended = Event()

    def wake():
        while not ended.is_set():
            monitor.wake()

    threads = [Thread(target=wake, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 1
        count = 0
        while time.monotonic() < end:
            count += 1
            with pytest.raises((Interrupted, RuntimeError)):  # RuntimeError: Condition.wait had released its lock
                signal.setitimer(signal.ITIMER_REAL, 3e-4 + count % 50 * 1e-5)
                while True:
                    monitor.wait(lambda: False, 1e-3)
            other = Thread(target=monitor.wake, daemon=True)
            other.start()
            other.join(5)
            assert not other.is_alive(), f"locked by signal {count}"
    finally:
        ended.set()
    for thread in threads:
        thread.join(5)
