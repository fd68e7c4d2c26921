"""Knowing when the executor's process ends, without being its child."""

import os
import select
from collections.abc import Callable
from threading import Thread

import psutil

__all__ = ["watch_process"]


def watch_process(pid: int, on_end: Callable[[], None]) -> None:
    """Call `on_end`, in a thread, when the process has ended.

    Linux tells at once by a file descriptor of the process; elsewhere it is looked up several times a second.
    """
    Thread(target=_wait, args=(pid, on_end), daemon=True).start()


def _wait(pid: int, on_end: Callable[[], None]) -> None:
    try:
        if hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(pid)
            select.select([descriptor], [], [])
            os.close(descriptor)
        else:
            psutil.Process(pid).wait()
    except (ProcessLookupError, psutil.NoSuchProcess):
        pass
    on_end()
