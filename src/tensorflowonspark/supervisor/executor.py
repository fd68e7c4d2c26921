"""Knowing when the executor's process ends, without being its child."""

import os
import select
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import psutil

__all__ = ["watch_process"]


def watch_process(pid: int, on_end: Callable[[], None]) -> None:
    """Call `on_end`, in a thread, when the process has ended.

    Linux tells at once by a file descriptor of the process; elsewhere it is looked up several times a second.
    """
    Thread(target=_wait, args=(pid, on_end), daemon=True).start()


def _wait(pid: int, on_end: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        if not _waited_by_descriptor(pid):
            psutil.Process(pid).wait()
    on_end()


def _waited_by_descriptor(pid: int) -> bool:
    """Wait for a process's end by a file descriptor; return False where there is none to be had."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # a kernel before 5.3, or a container that forbids it
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.close(descriptor)
    return True
