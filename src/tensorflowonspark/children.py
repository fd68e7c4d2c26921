"""Starting one of our own processes, with a pipe to it that no one else holds.

A process is started with ``exec`` and never forked from a running interpreter, but for nodes that a fork server has
(`warm`). Parent and child share a socket pair: the child learns of its parent's death by the pipe's end, whatever the
parent died of.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import IO, Protocol

__all__ = ["UNKNOWN_EXIT", "Process", "kill_group", "parent_pipe", "start"]

UNKNOWN_EXIT = 1 << 16  # in place of an exit code, which has fewer bits: nobody was left to hear of it


class Process(Protocol):
    """A process that was started, as ``subprocess.Popen`` shows it."""

    @property
    def pid(self) -> int: ...  # noqa: D102
    def poll(self) -> int | None: ...  # noqa: D102
    def wait(self, timeout: float | None = None) -> int: ...  # noqa: D102


def start(
    module: str,
    environment: Mapping[str, str],
    output: int | IO[bytes] | None = None,
    *,
    leashed: bool = False,
    private: str = "",
    fork: Callable[[Sequence[int], str], Process | None] | None = None,
) -> tuple[Process, Connection]:
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
    leashed : bool
        Whether the kernel is to kill the process, with all that it has started in turn, when this one is gone.
    private : str
        A directory that is to go with it then: its path is seen by everybody on the host, its contents are not.
    fork : callable, optional
        A shorter way to the same process: it takes the descriptors that are the process's arguments and its private
        directory, and returns the process, or None if there is no such way.
    """
    ours, theirs = socket.socketpair()
    # The writing end stays open, and nobody else's, for as long as this process lives.
    passed = [theirs.fileno(), *([os.pipe()[0]] if leashed else [])]
    try:
        process: Process | None = fork(passed, private) if fork else None
        process = process or subprocess.Popen(
            [sys.executable, "-u", "-m", module, private, *map(str, passed)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__ if output is None else output,
            stderr=None if output is None else subprocess.STDOUT,
            pass_fds=passed,
            start_new_session=True,
        )
    finally:
        theirs.close()
        for descriptor in passed[1:]:
            os.close(descriptor)
    return process, Connection(ours.detach())


def parent_pipe() -> Connection:
    """Return the child's end of the pipe, which its own children don't inherit; put it on its leash, if it has one.

    On the leash is the whole process group: a shell in it waits for the end of a pipe that only the parent holds open,
    removes its private directory, and kills the group. It needs no word from the child, which may hang.
    """
    private, pipe, *leash = sys.argv[1], *map(int, sys.argv[2:])
    os.set_inheritable(pipe, False)
    if leash:
        subprocess.Popen(
            ["/bin/sh", "-c", 'read _; [ -z "$0" ] || rm -rf "$0"; kill -KILL 0', private],
            stdin=leash[0],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(leash[0])
    return Connection(pipe)


def kill_group(leader: int, signal_number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that `start` started and to all that it started in turn; it may be gone already."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal_number)
