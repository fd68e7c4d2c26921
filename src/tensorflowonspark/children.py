"""Starting one of our own processes, with a pipe to it that no one else holds.

A process is started with ``exec`` and never forked from a running interpreter. Parent and child share a socket pair:
the child learns of its parent's death by the pipe's end, whatever the parent died of.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import IO

__all__ = ["kill_group", "parent_pipe", "start"]


def start(
    module: str, environment: Mapping[str, str], output: int | IO[bytes] | None = None
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start ``python -m module`` in a session of its own and return it with the parent's end of the pipe.

    Parameters
    ----------
    module : str
        What to run; it finds its end of the pipe with `parent_pipe`.
    environment : mapping
        The whole environment of the process.
    output : int or file, optional
        Where standard output and standard error go together (as for ``subprocess``); by default both go to this
        process's standard error.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", module, str(theirs.fileno())],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__ if output is None else output,
            stderr=None if output is None else subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    finally:
        theirs.close()
    return process, Connection(ours.detach())


def parent_pipe() -> Connection:
    """Return the child's end of the pipe; its children don't inherit it."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    return Connection(descriptor)


def kill_group(leader: int, signal_number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that `start` started and to all that it started in turn; it may be gone already."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal_number)
