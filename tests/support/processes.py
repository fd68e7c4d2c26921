"""The processes of a cluster and of its executors, found by what connects them; and what a test leaves behind."""

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

_GONE_SECONDS = 8.0
scratch_directories: list[str] = []  # Spark's local directories, of each session


def node_of(cluster, number):
    """Return the process of a node: it writes to a pipe that its supervisor reads, whoever has started it."""
    pipes = _pipes(cluster.nodes[number].pid)
    for process in psutil.process_iter(["cmdline"]):
        if {"tensorflowonspark.node", "tensorflowonspark.supervisor.forkserver"} & set(process.info["cmdline"] or []):
            with suppress(OSError):
                if os.readlink(f"/proc/{process.pid}/fd/1") in pipes:
                    return process
    raise LookupError(f"node {number} has no process")


def _pipes(pid):
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(path))
    return {name for name in found if name.startswith("pipe:")}


def has_ended(process):
    """Tell whether a process has ended, even if its parent has not yet waited for it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


_FORK_SERVERS = {"tensorflowonspark.supervisor.forkserver", "tensorflowonspark.frames.key_server"}


def is_fork_server(process):
    """Tell whether a process is a fork server, and not a node, or the process of a key, that was forked from one."""
    try:
        return bool(_FORK_SERVERS & set(process.cmdline())) and not process.name().startswith("tfos-")
    except psutil.Error:
        return False


def fork_servers():
    """Return the fork servers that executors of this test run have."""
    run = os.environ["TFOS_TEST_RUN"]
    found = []
    for process in filter(is_fork_server, psutil.process_iter()):
        with suppress(psutil.Error):
            environment = process.environ()
            ours = environment.get("TFOS_TEST_RUN") == run and "SPARK_LOCAL_DIRS" in environment
            if ours and not has_ended(process):
                found.append(process)
    return found


def is_of_cluster(process):
    """Tell whether a process is a supervisor, a node or a TensorBoard; fork servers stay as long as their session."""
    try:
        line = " ".join(process.cmdline())
        ours = "-m tensorflowonspark." in line or "kill -KILL 0" in line
        return ours and not has_ended(process) and not is_fork_server(process)
    except psutil.Error:
        return False


def our_processes():
    """Return the processes of the clusters of this test run."""
    found = []
    for process in filter(is_of_cluster, psutil.process_iter()):
        with suppress(psutil.Error):
            if process.environ().get("TFOS_TEST_RUN") == os.environ["TFOS_TEST_RUN"]:
                found.append(f"{process.pid}: {' '.join(process.cmdline())}")
    return found


def left_behind():
    """Return what of ours is still there: processes, and files in Spark's local directories."""
    files = [
        os.path.join(directory, name)
        for scratch in scratch_directories
        for directory, names, others in os.walk(scratch)
        for name in [*names, *others]
        if name.startswith("tfos-") and not name.startswith(("tfos-warm-", "tfos-weights-"))  # these go with Spark's
    ]
    return our_processes() + files


def check_nothing_left(name):
    """Fail if processes or files of ours stay; they have some seconds to go."""
    left = ended(left_behind)
    assert not left, f"left behind by {name}: {left}"


def ended(find):
    """Return what `find` still finds after some seconds, or as soon as it finds nothing."""
    end = time.monotonic() + _GONE_SECONDS
    while (found := find()) and time.monotonic() < end:
        time.sleep(0.05)
    return found
