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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorflowonspark.task.gpus import gpu_names

_DEVICES = "/sys/class/infiniband"
_NCCL_SECONDS = 120.0  # most of them for the import of TensorFlow
_PROGRAM = """
# Sum a small array over all GPUs of this process as a training does, with NCCL, whose log shows its choice.
import sys, tensorflow as tf
if not tf.config.list_physical_devices("GPU"):
    sys.exit("TensorFlow sees no GPU: install tensorflow[and-cuda]")
kinds = tf.distribute.experimental
options = kinds.CommunicationOptions(implementation=kinds.CommunicationImplementation.NCCL)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
@tf.function
def add():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones(1024)))
add()
"""
_OF_NCCL = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
_NOT_OF_NCCL = ("NCCL_DEBUG_FILE", "TF_CONFIG")


@dataclass(frozen=True)
class InfiniBandPort:
    """A port of an InfiniBand device, or of an Ethernet device with RDMA (RoCE)."""

    device: str  # as ``mlx5_0``
    port: int  # its number, from 1
    state: str  # as ``ACTIVE`` or ``DOWN``
    rate: str  # as ``100 Gb/sec (4X EDR)``
    link: str  # ``InfiniBand`` or ``Ethernet``

    @property
    def is_active(self) -> bool:
        """Whether the port can send."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class NcclChoice:
    """What NCCL has chosen on a host, by its log; empty where the log does not show it."""

    version: str = ""  # as ``2.27.3+cuda12.9``
    network: str = ""  # that connects hosts: ``IB`` (InfiniBand or RoCE), ``Socket`` (TCP), or the name of a plugin
    devices: tuple[str, ...] = ()  # of that network, as ``mlx5_0:1/IB``, or ``eth0``
    # All of these access the GPUs' memory without the processor's; None if that is not known.
    gpudirect: bool | None = None
    paths: tuple[str, ...] = ()  # between GPUs of this host, as ``P2P/CUMEM`` or ``SHM/direct/direct``
    problem: str = ""  # why NCCL did not run; empty if it did


@dataclass(frozen=True)
class Fabric:
    """What connects the GPUs of a host with each other and with other hosts."""

    gpus: tuple[str, ...]  # their names
    ports: tuple[InfiniBandPort, ...]  # of InfiniBand devices
    locked_memory: int  # the limit of memory that a process may lock, in bytes; -1 without a limit
    nccl: NcclChoice | None  # None without a GPU, or without TensorFlow, which would start NCCL

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Fabric":
        """Return the one with these fields (``dataclasses.asdict``)."""
        nccl = fields["nccl"]
        ports = tuple(InfiniBandPort(**each) for each in fields["ports"])
        return cls(fields["gpus"], ports, fields["locked_memory"], None if nccl is None else NcclChoice(**nccl))


def find_fabric() -> Fabric:
    """Return what connects the GPUs of this host; where there are a GPU and TensorFlow, that is started for it."""
    gpus = gpu_names()
    asks = bool(gpus) and find_spec("tensorflow") is not None
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Fabric(gpus, infiniband_ports(Path(_DEVICES)), locked, _run_nccl() if asks else None)


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
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_OF_NCCL}
    environment |= {**_OF_NCCL, "PYTHONSAFEPATH": "1"}
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

    `problem` is why the process failed, if it did.

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
