"""Processes of a cluster: start with a private pipe, detection of their ends, identity, and clean-up.

A process is started with ``exec``, never forked from a running interpreter, except by a fork server
(`supervisor.forkserver`). Parent and child share a socket pair: when the parent ends, its side closes, and the child
notices.
"""

import os
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import IO, Protocol

import psutil

# An environment variable of a node and its descendants, whose value is the node's private directory. It identifies
# processes that have left the node's group (setsid) and their parent (daemons). The kernel shows the environment of the
# last ``exec``: a node that is forked from a fork server has the directory's name as its process name instead, and so
# have its forks.
FAMILY = "TFOS_NODE"

# Nothing is imported from the working directory. Python 3.10 has no such option.
_SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []
PIPE_CLOSED_EXIT = 213  # of a node whose program has closed the pipe to its supervisor
UNKNOWN_EXIT = 1 << 16  # an impossible exit code: the process that would have received it had ended

# Kills a process when its parent has ended: it waits for the end of a pipe that the parent alone holds open. A parent
# that is stopped can't end itself: it is killed when it was found stopped several times in a row.
_ORPHAN_GUARD = """
parent=$1 child=$2 private=$3 checks=$4 interval=$5 family=$6
{
    times=0
    while sleep "$interval" && read -r status < "/proc/$parent/stat"; do
        case $status in *") T "* | *") t "*) times=$((times + 1)) ;; *) times=0 ;; esac
        [ "$times" -lt "$checks" ] || kill -KILL "$parent"
    done
} < /dev/null &
read -r _
if [ -z "$private" ] || [ -d "$private" ]; then  # else the parent has cleaned up itself
    kill -KILL "-$child"
    if [ -n "$private" ]; then
        for _ in 1 2; do
            for each in $(
                grep -lsF "$family=$private" /proc/[0-9]*/environ
                grep -lsxF "${private##*/}" /proc/[0-9]*/comm
            ); do
                each=${each#/proc/}
                kill -KILL "${each%/*}"
            done
        done
        rm -rf "$private"
    fi
fi
kill -KILL 0
"""
_CHECKS = 4  # in a row, within the timeout: one alone may meet a stop of a moment, as by a debugger
_NAME_BYTES = 15  # the kernel's limit of a process name
_PASSES = 3  # over all processes: each finds those that the ones found before have forked meanwhile


class Process(Protocol):
    """The part of ``subprocess.Popen`` that forked processes have too."""

    @property
    def pid(self) -> int: ...  # noqa: D102
    def poll(self) -> int | None: ...  # noqa: D102
    def wait(self, timeout: float | None = None) -> int: ...  # noqa: D102


def start(
    module: str,
    environment: Mapping[str, str],
    output: int | IO[bytes] | None = None,
    *,
    orphan_timeout: float = 0.0,
    private: str = "",
    fork: Callable[[int], Process | None] | None = None,
) -> tuple[Process, Connection]:
    """Start ``python -m module`` in a new session; return the process and the parent's end of the pipe.

    The module gets its end of the pipe from `parent_pipe`, and `environment` is all that it has. Its standard output
    and standard error go together to `output` (as for ``subprocess``), by default to this process's standard error.

    If `orphan_timeout` is not 0, an orphan guard kills the process, with all its descendants, when this process has
    ended, or has been stopped (SIGSTOP) for so many seconds; in that case this process is killed too. The guard also
    removes the directory `private`, and kills processes that have it as their `FAMILY`; its path is visible to all
    users of the host, its contents are not. This process removes the directory as its last step, after which the guard
    does nothing.

    `fork` forks the process instead: it is called with the file descriptor that is the process's argument, and returns
    None if it can't; then the process is started with ``exec``.
    """
    ours, theirs = socket.socketpair()
    passed = theirs.fileno()
    with theirs:
        process: Process | None = fork(passed) if fork else None
        process = process or subprocess.Popen(
            [sys.executable, "-u", *_SAFE_PATH, "-m", module, str(passed)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__ if output is None else output,
            stderr=None if output is None else subprocess.STDOUT,
            pass_fds=[passed],
            start_new_session=True,
        )
    if orphan_timeout:
        _start_orphan_guard(process.pid, orphan_timeout, private)
    return process, Connection(ours.detach())


def _start_orphan_guard(child: int, seconds: float, private: str) -> None:
    """Start a shell that kills a process when this one has ended; it depends on neither, since both may hang."""
    reading, _ = os.pipe()  # the writing end stays open, in this process alone, until it ends
    arguments = [str(os.getpid()), str(child), private, str(_CHECKS), str(seconds / _CHECKS), FAMILY]
    subprocess.Popen(
        ["/bin/sh", "-c", _ORPHAN_GUARD, "orphan-guard", *arguments],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)


def parent_pipe() -> Connection:
    """Return the child's end of the pipe; the child's own children do not inherit it."""
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    return Connection(pipe)


def place() -> str:
    """Return what processes have in common to which a pid means the same: the kernel's boot, and the PID namespace.

    Pids and paths alone are no identity: those of containers are alike. Empty if ``/proc`` is another namespace's.
    """
    try:
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def open_private(directory: Path) -> int:
    """Return a file descriptor of a directory that only this user can enter.

    Raises OSError if it is missing, belongs to another user, or is accessible to others.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(descriptor)
        raise PermissionError(f"{directory} is not private to this user: it must be the user's own, of mode 700")
    return descriptor


def kill_group(leader: int, signal_number: int = signal.SIGKILL) -> None:
    """Send a signal to the process group of a process of `start`, unless it has ended."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal_number)


def kill_family(leader: int, private: str) -> None:
    """Kill a node and all its descendants, including those that have left its process group.

    The node may have ended; all that have its private directory as their `FAMILY` are its descendants.
    """
    found: set[int] = set()
    with suppress(psutil.NoSuchProcess):
        found = {process.pid for process in psutil.Process(leader).children(recursive=True)}
    kill_group(leader)
    for _ in range(_PASSES):  # a process may fork while it is being found
        found.update(_family(private))
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        found.clear()


def _family(private: str) -> Iterator[int]:
    variable = os.fsencode(f"{FAMILY}={private}") + b"\0"
    name = f"{process_name(private)}\n"
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            forked = (directory / "comm").read_text(errors="replace") == name
            if forked or variable in (directory / "environ").read_bytes() + b"\0":
                yield int(directory.name)


def process_name(private: str) -> str:
    """Return the process name of a forked node, which is the name of its private directory.

    Examples
    --------
    >>> process_name("/scratch/tfos-ab12cd34")
    'tfos-ab12cd34'
    """
    return Path(private).name[:_NAME_BYTES]


def watch_process(pid: int, on_end: Callable[[], None]) -> None:
    """Call `on_end`, in a thread, when the process has ended."""

    def wait() -> None:
        wait_for_end(pid)
        on_end()

    Thread(target=wait, daemon=True).start()


def wait_for_end(pid: int) -> None:
    """Wait for the end of a process: with a file descriptor on Linux, elsewhere by polling several times a second."""
    with suppress(psutil.NoSuchProcess):
        if not _waited_by_descriptor(pid):
            psutil.Process(pid).wait()


def _waited_by_descriptor(pid: int) -> bool:
    """Wait for the end of a process with a file descriptor; return False if the system has none."""
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
