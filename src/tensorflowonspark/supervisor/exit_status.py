"""Explanation of a node's exit status."""

import signal
from pathlib import Path

from tensorflowonspark.errors import FailureKind
from tensorflowonspark.processes import PIPE_CLOSED_EXIT, UNKNOWN_EXIT

MEMORY_ADVICE = (
    "give the executors more memory beside the JVM's (spark.executor.memoryOverhead), run fewer nodes on each, or "
    "use a smaller model or batch_size"
)
_BEFORE = " before its program did"
_JAX_ABORT = "JAX distributed service detected fatal errors"
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """Return the number of processes of this control group that the kernel has killed for memory; 0 if unknown.

    Read from ``memory.events`` (cgroup 2) or ``memory.oom_control`` (cgroup 1) of this process's own group, or from
    ``/proc/vmstat``, which is for the whole host.

    References
    ----------
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files,
    https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
    """
    candidates = [*_cgroup_files(root), root / "proc/vmstat"]
    for path in candidates:
        try:
            pairs = [line.split() for line in path.read_text().splitlines()]
        except OSError:
            continue
        for pair in pairs:
            if pair[0] == "oom_kill":
                return int(pair[1])
    return 0


def _cgroup_files(root: Path) -> list[Path]:
    """Return the files with the counts of this process's memory group, found by ``/proc/self/cgroup``."""
    files = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    base = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        group = path.lstrip("/")
        if "memory" in controllers.split(","):
            files.append(base / "memory" / group / "memory.oom_control")
            files.append(base / "memory" / "memory.oom_control")  # in a container the group is the root of its view
        elif not controllers:
            files.append(base / group / "memory.events")
            files.append(base / "memory.events")
    return files


def explain(
    exit_code: int, memory_kills: int, *, returned: bool = False, output: str = ""
) -> tuple[FailureKind, str, str]:
    """Return kind, reason and advice for the end of a node's process.

    The exit code is as of ``subprocess``, negative for the signal that ended the process, or `UNKNOWN_EXIT`. Memory
    kills are of processes of the same control group, while the node ran. A node that has `returned` stays for its peers
    and for inference.

    Examples
    --------
    >>> explain(3, 0)[1]
    'its process ended with exit code 3 before its program did'
    """
    if returned:
        kind, reason, advice = explain(exit_code, memory_kills, output=output)
        return kind, f"{reason.removesuffix(_BEFORE)} after its program had returned", advice
    if exit_code == UNKNOWN_EXIT:
        reason = "its process ended after its fork server, which would have received its exit code"
        kind = FailureKind.OUT_OF_MEMORY if memory_kills else FailureKind.KILLED
        return kind, reason, f"someone killed both: an operator, or the host for memory; if so, {MEMORY_ADVICE}"
    if exit_code == PIPE_CLOSED_EXIT:
        reason = (
            "its program closed the connection to its supervisor, as os.closerange does, or a second close of a file"
        )
        return FailureKind.EXITED, reason, "close only what the program has opened; subprocess does it for children"
    if exit_code >= 0:
        reason = f"its process ended with exit code {exit_code}{_BEFORE}"
        return FailureKind.EXITED, reason, "look for sys.exit or os._exit in the program, or at its last output"
    return _explain_signal(-exit_code, memory_kills, output)


def _explain_signal(number: int, memory_kills: int, output: str) -> tuple[FailureKind, str, str]:
    name = signal.Signals(number).name
    if number == signal.SIGKILL and memory_kills:
        return FailureKind.OUT_OF_MEMORY, "it ran out of memory: the kernel killed its process", MEMORY_ADVICE
    if number == signal.SIGABRT and _JAX_ABORT in output:
        advice = "all nodes are up: the network between the workers may drop packets"
        return FailureKind.PEER_LOST, "JAX ended its process, since it lost the one of the first worker", advice
    if number in _CRASHES:
        advice = "native code crashed (TensorFlow, a driver, a custom op): see its last output"
    elif number == signal.SIGKILL:
        advice = f"someone killed it: an operator, the resource manager, or the host for memory; if so, {MEMORY_ADVICE}"
    else:
        advice = "someone sent it that signal"
    return FailureKind.KILLED, f"its process was ended by {name}", advice


def shell_code(exit_code: int) -> int:
    """Return the exit code of a process as a shell knows it; 1 if it is unknown, or 0 where there should be none.

    Examples
    --------
    >>> shell_code(3), shell_code(-signal.SIGKILL), shell_code(UNKNOWN_EXIT)
    (3, 137, 1)
    """
    if exit_code in (UNKNOWN_EXIT, PIPE_CLOSED_EXIT, 0):
        return 1
    return exit_code if exit_code > 0 else 128 - exit_code
