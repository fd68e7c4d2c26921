"""What counts as activity of a process, with real processes."""

import math
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

from tensorflowonspark.messages import Idle
from tensorflowonspark.supervisor.liveness import LivenessMonitor

_TIMEOUT = 0.5
_FROZEN = """
import ctypes, threading, time
def wake_up():
    while True: time.sleep(0.05)
for _ in range(4): threading.Thread(target=wake_up, daemon=True).start()
print(flush=True)
ctypes.PyDLL(None).sleep(600)  # a PyDLL's functions keep Python's lock
"""
_BUSY = "print(flush=True)\nwhile True: pass"


@contextmanager
def running(program, *, processor=None):
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            if processor is not None:
                os.sched_setaffinity(process.pid, {processor})
            yield process
        finally:
            process.kill()


def changes(process, seconds, timeout=_TIMEOUT, most=math.inf):
    """Return what a monitor finds in some seconds, or the first ones of it."""
    monitor = LivenessMonitor(process.pid, timeout, lambda: None)
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end and len(found) < most:
        if change := monitor.check():
            found.append(change)
        time.sleep(0.02)
    return found


@pytest.mark.deep
def test_threads_that_wait_for_python_are_no_activity():
    """Each wakes up 200 times a second. (On a host with much else to do it may have to wait for a processor then.)"""
    with running(_FROZEN) as process:
        for _ in range(10):
            found = changes(process, 4 * _TIMEOUT)
            if len(found) == 1:
                break
    assert [type(each) for each in found] == [Idle]


@pytest.mark.deep
@pytest.mark.skipif(sys.platform != "linux", reason="the time that a thread waits for a processor is Linux's")
def test_a_process_that_gets_no_processor_is_active():
    """Others with a higher priority have the processor that it wants."""
    processor = min(os.sched_getaffinity(0))
    with running(_BUSY, processor=processor) as starved, running(_BUSY, processor=processor) as other:
        psutil.Process(starved.pid).nice(19)
        psutil.Process(other.pid).nice(-20 if os.getuid() == 0 else 0)
        assert not changes(starved, 3 * _TIMEOUT)


def test_a_loop_that_polls_is_active():
    with running("import time\nprint(flush=True)\nwhile True: time.sleep(0.2)") as process:
        assert not changes(process, 0.8, timeout=0.4)


def test_time_in_which_nobody_looked_is_no_idleness():
    """As on a busy machine, or after the host was paused: the process had no processor, and its monitor neither."""
    with running("import time\nprint(flush=True)\ntime.sleep(600)") as process:
        monitor = LivenessMonitor(process.pid, 0.2, lambda: None)
        for _ in range(2):
            time.sleep(0.25)
            assert monitor.check() is None
        found = changes(process, 20.0, timeout=0.2, most=1)  # on a busy machine too
    assert [type(each) for each in found] == [Idle]


@pytest.mark.deep
def test_a_process_that_has_ended_is_reported_elsewhere():
    with running(_BUSY) as process:
        process.kill()
        process.wait()
        assert not [each for each in changes(process, 3 * _TIMEOUT) if not isinstance(each, Idle)]
