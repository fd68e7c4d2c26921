"""What connects GPUs on a host: InfiniBand devices, the limit of locked memory, and what NCCL chooses.

Spark tasks run these functions where this package may be missing: they are shipped by value, and this module imports
the standard library alone.
"""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorflowonspark.task.gpus import gpu_names

__all__ = ["Fabric", "InfiniBandPort", "NcclChoice", "find_fabric", "infiniband_ports", "parse_nccl"]

_DEVICES = "/sys/class/infiniband"
_NCCL_SECONDS = 60.0
_PROGRAM = """
# Sum a small array over all GPUs of this process with NCCL, whose log shows its choice.
import ctypes, glob, site, sys
def load(name):
    folders = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    found = [path for folder in folders for path in sorted(glob.glob(f"{folder}/nvidia/*/lib/{name}.so.*"))]
    for path in [*found, *(f"{name}.so{version}" for version in ("", ".2", ".13", ".12", ".11"))]:
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass
    sys.exit(f"there is no {name}.so: install tensorflow[and-cuda]")
cuda, nccl = load("libcudart"), load("libnccl")
cuda.cudaGetErrorString.restype = nccl.ncclGetErrorString.restype = ctypes.c_char_p
def call(function, *arguments):
    status = function(*arguments)
    if status:
        errors = cuda.cudaGetErrorString if function.__name__.startswith("cuda") else nccl.ncclGetErrorString
        sys.exit(f"{function.__name__}: {errors(status).decode()}")
count = ctypes.c_int()
call(cuda.cudaGetDeviceCount, ctypes.byref(count))
size = 1024
float32, add = 7, 0
communicators, buffers, streams = ((ctypes.c_void_p * count.value)() for _ in range(3))
element = ctypes.sizeof(ctypes.c_void_p)
call(nccl.ncclCommInitAll, communicators, count, None)
for gpu in range(count.value):
    call(cuda.cudaSetDevice, gpu)
    call(cuda.cudaMalloc, ctypes.byref(buffers, gpu * element), ctypes.c_size_t(4 * size))
    call(cuda.cudaStreamCreate, ctypes.byref(streams, gpu * element))
call(nccl.ncclGroupStart)
for gpu in range(count.value):
    buffer, communicator, stream = (ctypes.c_void_p(each[gpu]) for each in (buffers, communicators, streams))
    call(nccl.ncclAllReduce, buffer, buffer, ctypes.c_size_t(size), float32, add, communicator, stream)
call(nccl.ncclGroupEnd)
for gpu in range(count.value):
    call(cuda.cudaSetDevice, gpu)
    call(cuda.cudaDeviceSynchronize)
"""


@dataclass(frozen=True)
class InfiniBandPort:
    """A port of an InfiniBand device, or of an Ethernet device with RDMA (RoCE).

    Attributes
    ----------
    device : str
        The device's name, as ``mlx5_0``.
    port : int
        The port's number, from 1.
    state : str
        As ``ACTIVE`` or ``DOWN``.
    rate : str
        As ``100 Gb/sec (4X EDR)``.
    link : str
        ``InfiniBand`` or ``Ethernet``.
    """

    device: str
    port: int
    state: str
    rate: str
    link: str

    @property
    def is_active(self) -> bool:
        """Whether the port can send."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class NcclChoice:
    """What NCCL has chosen on a host, by its log; empty where the log does not show it.

    Attributes
    ----------
    version : str
        As ``2.27.3+cuda12.9``.
    network : str
        What connects hosts: ``IB`` (InfiniBand or RoCE), ``Socket`` (TCP), or the name of a plugin.
    devices : tuple of str
        The devices of that network, as ``mlx5_0:1/IB``, or ``eth0``.
    gpudirect : bool or None
        Whether all of these devices access the GPUs' memory without the processor's; None if that is not known.
    paths : tuple of str
        Between GPUs of this host, as ``P2P/CUMEM`` or ``SHM/direct/direct``.
    problem : str
        Why NCCL did not run; empty if it did.
    """

    version: str = ""
    network: str = ""
    devices: tuple[str, ...] = ()
    gpudirect: bool | None = None
    paths: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Fabric:
    """What connects the GPUs of a host with each other and with other hosts.

    Attributes
    ----------
    gpus : tuple of str
        The names of the GPUs.
    ports : tuple of InfiniBandPort
        The ports of InfiniBand devices.
    locked_memory : int
        The limit of memory that a process may lock, in bytes; -1 without a limit.
    nccl : NcclChoice or None
        None without a GPU.
    """

    gpus: tuple[str, ...]
    ports: tuple[InfiniBandPort, ...]
    locked_memory: int
    nccl: NcclChoice | None

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Fabric":
        """Return the one with these fields (``dataclasses.asdict``)."""
        nccl = fields["nccl"]
        ports = tuple(InfiniBandPort(**each) for each in fields["ports"])
        return cls(fields["gpus"], ports, fields["locked_memory"], None if nccl is None else NcclChoice(**nccl))


def find_fabric() -> Fabric:
    """Return what connects the GPUs of this host; NCCL runs for some seconds where there is a GPU."""
    gpus = gpu_names()
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Fabric(gpus, infiniband_ports(Path(_DEVICES)), locked, _run_nccl() if gpus else None)


def infiniband_ports(devices: Path) -> tuple[InfiniBandPort, ...]:
    """Return the ports of the InfiniBand devices that the kernel shows in a directory; none if it does not exist."""
    found = []
    for path in sorted(devices.glob("*/ports/*"), key=lambda each: (each.parts[-3], each.name.zfill(3))):
        with suppress(OSError, ValueError):  # a device may vanish
            state = _first_line(path / "state").partition(": ")[2]
            port = int(path.name)
            found.append(
                InfiniBandPort(
                    path.parts[-3], port, state, _first_line(path / "rate"), _first_line(path / "link_layer")
                )
            )
    return tuple(found)


def _first_line(path: Path) -> str:
    return path.read_text().strip().partition("\n")[0]


def _run_nccl(command: Sequence[str] = (sys.executable, "-c", _PROGRAM)) -> NcclChoice:
    """Sum a small array over this host's GPUs with NCCL; return its choice."""
    environment = {**os.environ, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P", "PYTHONSAFEPATH": "1"}
    environment.pop("NCCL_DEBUG_FILE", None)
    with subprocess.Popen(
        list(command), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            output, end = process.communicate(timeout=_NCCL_SECONDS)[0], ""
        except subprocess.TimeoutExpired:
            process.kill()
            output, end = process.communicate()[0], f"it took more than {_NCCL_SECONDS:g} s"
    text = output.decode(errors="replace")
    if not end and process.returncode:
        own = [line for line in text.splitlines() if "NCCL INFO" not in line and line.strip()]
        end = own[-1].strip() if own else f"it ended with exit code {process.returncode}"
    return parse_nccl(text, end)


def parse_nccl(log: str, problem: str = "") -> NcclChoice:
    """Return NCCL's choice from what it prints with ``NCCL_DEBUG=INFO``.

    Parameters
    ----------
    log : str
        The output of a process.
    problem : str
        Why the process failed, if it did.

    Examples
    --------
    >>> parse_nccl("h1:7:9 [0] NCCL INFO Using network Socket").network
    'Socket'
    """
    version = re.search(r"NCCL version (\S+)", log)
    networks = re.findall(r"NCCL INFO Using network (.+)", log)
    network = networks[-1].strip() if networks else ""
    devices: list[str] = []
    for line in re.findall(rf"NCCL INFO NET/{re.escape(network)} : Using (\[.*)", log) if network else []:
        devices += re.findall(r"\[\d+\](\S+)", line.partition("; OOB")[0])
    direct = re.findall(rf"NET/{re.escape(network)} : GPU Direct RDMA (?:\(DMA-BUF\) )?(\w+) for", log)
    paths = re.findall(r"Channel \S+ : .* via ([^\s\[]+)", log)
    return NcclChoice(
        version=version[1] if version else "",
        network=network,
        devices=tuple(dict.fromkeys(re.sub(r":[\d.]+<\d+>$", "", each) for each in devices)),
        gpudirect=all(each == "Enabled" for each in direct) if direct else None,
        paths=tuple(dict.fromkeys(paths)),
        problem=problem,
    )
