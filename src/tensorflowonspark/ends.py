"""Knowing when a process ends without being its parent."""

import os
import select
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import psutil

__all__ = ["wait_for_end", "watch_process"]


def watch_process(pid: int, on_end: Callable[[], None]) -> None:
    """Call `on_end`, in a thread, when the process has ended."""

    def wait() -> None:
        wait_for_end(pid)
        on_end()

    Thread(target=wait, daemon=True).start()


def wait_for_end(pid: int) -> None:
    """Return when the process has ended.

    Linux tells at once by a file descriptor of the process; elsewhere it is looked up several times a second.
    """
    with suppress(psutil.NoSuchProcess):
        if not _waited_by_descriptor(pid):
            psutil.Process(pid).wait()


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
