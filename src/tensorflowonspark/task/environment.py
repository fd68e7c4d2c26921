"""The environment of an executor or of the driver: versions by import, resources, and a connection to the driver.

Spark tasks run these functions where this package may be missing: they are shipped by value, and import the standard
library alone, or do without this package.
"""

import hashlib
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorflowonspark.task.fabric import Fabric, find_fabric
from tensorflowonspark.task.gpus import all_gpus

PACKAGES = ("tensorflowonspark", "tensorflow", "keras", "pyarrow", "numpy")
_IMPORT_SECONDS = 180.0  # of TensorFlow on a busy host with a cold disk
_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS, _MOST_AT_ONCE = 4.0, 64  # of other executors
_HOLD_SECONDS = 1.0  # for which a task keeps its slot, so that Spark gives the others to the other tasks
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - its size is read
# Prints a line for each module: a crash in the import of one leaves those before it known. Then prints Keras's backend,
# and a line for each problem of these modules, and for each fact that is none but should be known.
_IMPORTS = """
import importlib, json, os, sys
for name in sys.argv[1:]:
    try:
        found = [str(getattr(importlib.import_module(name), "__version__", "?")), ""]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        found = ["", f"{type(error).__name__}: {error}".splitlines()[0]]
        if name == "keras" and "KERAS_BACKEND" in os.environ:
            found[1] += "; KERAS_BACKEND=" + os.environ["KERAS_BACKEND"]
    print(json.dumps(["imported", name, *found]), flush=True)
def report(field, lines):
    for line in lines:
        print(json.dumps([field, line, "", ""]), flush=True)
try:
    from tensorflowonspark.keras.private_names import untested
    from tensorflowonspark.keras.repairs import all_problems
    from tensorflowonspark.keras.wheels import clashes
    backend = sys.modules["keras"].config.backend() if "keras" in sys.modules else ""
    report("backend", [backend])
    report("problems", clashes())
    report("problems", all_problems(jax=backend == "jax"))
    from tensorflowonspark.bytecode import bytecode_problem
    imported = [name for name in ("tensorflow", "keras", "tf_keras", "jax") if name in sys.modules]
    report("notes", filter(None, [bytecode_problem(), *map(untested, imported)]))
except ImportError:
    pass
"""


@dataclass(frozen=True)
class ExecutorEnvironment:
    """What a node finds on a host."""

    host: str
    address: str  # in the connection to the driver
    python: str
    versions: dict[str, str]  # of each package that can be imported
    errors: dict[str, str]  # of each other one
    gpus: int  # that Spark has assigned to the task, or else that the host has
    shared_memory: int | None  # the size of ``/dev/shm`` in bytes; None if there is none
    open_files: int  # the hard limit of a process
    unreachable: str  # why no connection to the driver is possible; empty if one is
    slots: int = 0
    fabric: Fabric | None = None  # what connects GPUs, if that was asked for
    # Lines: private names that nodes need and these versions lack, packages of which several builds are installed.
    problems: Sequence[str] = ()
    # Lines on what is no problem: versions that were not tested, why each process compiles TensorFlow anew.
    notes: Sequence[str] = ()
    backend: str = ""  # Keras's

    @classmethod
    def of(cls, fields: dict[str, Any], slots: int = 0) -> "ExecutorEnvironment":
        """Return the environment with the fields of `own_environment`."""
        fabric = fields["fabric"]
        return cls(**{**fields, "fabric": None if fabric is None else Fabric.of(fabric)}, slots=slots)


def own_environment(
    driver: tuple[str, int] | None = None, gpus: int | None = None, *, fabric: bool = False
) -> dict[str, Any]:
    """Return the fields of an `ExecutorEnvironment`, without classes; importing TensorFlow takes seconds.

    The GPUs are those assigned to this process; by default those of the host. With `fabric` it finds what connects
    them.
    """
    imported = _imported()
    address, unreachable = _connect(driver) if driver else ("", "")
    return {
        "host": socket.gethostname(),
        "address": address,
        "python": platform.python_version(),
        **imported,
        "gpus": len(all_gpus()) if gpus is None else gpus,
        "shared_memory": _shared_memory(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "unreachable": unreachable,
        "fabric": asdict(find_fabric()) if fabric else None,
    }


def report_environment(
    driver: tuple[str, int], fabric: bool, _rows: Iterator[Any]
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield, in a Spark task, a key of its executor and the executor's environment.

    Of the tasks that an executor runs at the same time, one reports the environment, and the others None.
    """
    from pyspark import TaskContext

    begin = time.monotonic()
    # Containers that share a host's network may have equal pids and directories, and hosts equal names.
    namespaces, boot = Path("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id")
    namespace = namespaces.stat().st_ino if namespaces.exists() else 0
    kernel = boot.read_text().strip() if boot.exists() else ""
    key = f"{socket.gethostname()} {_executor_pid()} {kernel} {namespace} {Path.cwd()}"
    name = hashlib.sha256(f"{os.getuid()} {key}".encode(errors="surrogateescape")).hexdigest()
    task = TaskContext.get()
    assigned = task.resources().get("gpu") if task is not None else None
    with socket.socket(socket.AF_UNIX) as first:
        try:
            first.bind(f"\0tfos-check-{name}")  # a name that ends with the process
        except OSError:
            yield key, None
        else:
            yield key, own_environment(driver, len(assigned.addresses) if assigned else None, fabric=fabric)
        time.sleep(max(0.0, begin + _HOLD_SECONDS - time.monotonic()))


def report_unreached(ports: str, _rows: Iterator[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield, in a task of a barrier stage, this host, each address on another host that it can't reach, and why.

    All tasks listen at the first and the last free one of some ports, and one task of each host connects to the others,
    at the addresses that their nodes would have.

    The ports have the form of `port_range`; empty for the executor's own, or any.
    """
    from pyspark import BarrierTaskContext

    task = BarrierTaskContext.get()
    hosts = [info.address.rpartition(":")[0].strip("[]") for info in task.getTaskInfos()]
    own = hosts[task.partitionId()]
    try:  # a node's address may be another one than Spark's name of its host
        from tensorflowonspark.task.launch import own_address

        address = own_address(task)
    except ImportError:
        address = own
    listening = _listen(ports or os.environ.get("TFOS_PORTS") or "0", ":" in address)
    opened = task.allGather(" ".join([address, *(str(each.getsockname()[1]) for each in listening)]))
    first = {host: number for number, host in reversed(list(enumerate(hosts)))}
    others = [
        (opened[number].split()[0], int(port))
        for host, number in first.items()
        if host != own
        for port in opened[number].split()[1:]
    ]
    if first[own] == task.partitionId() and others:
        with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(others))) as pool:
            reasons = list(pool.map(_why_unreached, others))
        yield from ((own, f"{host}:{port}", why) for (host, port), why in zip(others, reasons, strict=True) if why)
    task.barrier()
    for each in listening:
        each.close()


def _listen(ports: str, ipv6: bool) -> list[socket.socket]:
    """Listen at the first and the last of some ports that is free."""
    low, _, high = ports.partition("-")
    wanted = range(int(low), int(high or low) + 1)
    family, listening = socket.AF_INET6 if ipv6 else socket.AF_INET, []
    for order in (wanted, wanted[::-1]):
        for port in order:
            with suppress(OSError):
                listening.append(socket.create_server(("", port), family=family))
                break
    return listening


def _why_unreached(address: tuple[str, int]) -> str:
    try:
        from tensorflowonspark.transport.reach import why_unreached

        return why_unreached(f"{address[0]}:{address[1]}", _ANSWER_SECONDS)
    except ImportError:  # this package is missing here, which is reported too
        pass
    try:
        socket.create_connection(address, timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        return error.strerror or f"no answer within {_ANSWER_SECONDS:g} s"
    return ""


def _imported() -> dict[str, Any]:
    """Import the packages in another process; return what it finds.

    These are the fields ``versions``, ``errors``, ``problems``, ``notes`` and ``backend`` of `ExecutorEnvironment`.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONSAFEPATH"] = "1"  # nothing from the working directory, from Python 3.11 on
    command = [sys.executable, "-c", _IMPORTS, *PACKAGES]
    output, end = "", "ended"
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            output = process.communicate(timeout=_IMPORT_SECONDS)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            output, end = process.communicate()[0].decode(errors="replace"), f"took more than {_IMPORT_SECONDS:g} s"
    if process.returncode < 0 and end == "ended":
        with suppress(ValueError):
            end = f"ended with {signal.Signals(-process.returncode).name}"
    versions: dict[str, str] = {}
    errors: dict[str, str] = {}
    reported: dict[str, list[str]] = {"problems": [], "notes": [], "backend": [""]}
    for line in output.splitlines():
        with suppress(ValueError, TypeError):
            mark, name, version, error = json.loads(line)
            if mark == "imported":
                (versions if version else errors)[name] = version or error
            elif mark in reported:
                reported[mark].append(name)
    for name in PACKAGES:
        if name not in versions and name not in errors:
            errors[name] = f"the import {end}"
            break  # those after it were not tried
    return {"versions": versions, "errors": errors, **reported, "backend": reported["backend"][-1]}


def _connect(driver: tuple[str, int]) -> tuple[str, str]:
    """Return this host's address in a connection to the driver, and why there is none or it does not do."""
    try:
        with socket.create_connection(driver, timeout=_CONNECT_SECONDS) as connection:
            return str(connection.getsockname()[0]), _why_unreached(driver)
    except OSError as error:
        return "", str(error)


def _shared_memory() -> int | None:
    try:
        size = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    return size.f_frsize * size.f_blocks


def _executor_pid() -> int:
    """Return the pid of the JVM that started this Python worker; without one, that of the parent."""
    pid = os.getppid()
    with suppress(OSError, KeyError, ValueError):
        while pid > 1:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if fields["Name"] == "java":
                return pid
            pid = int(fields["PPid"])
    return os.getppid()
