"""What a node's processes use: processor time, memory, and the GPUs of the node."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

from tensorflowonspark.messages import GpuUsage, NodeUsage


class UsageMeter:
    """Measures a process with its descendants, and GPUs.

    GPUs need the package ``nvidia-ml-py`` (the extra ``gpu``); without it, or without NVIDIA's driver, none is
    reported. Utilization and memory are those of the whole GPU, as NVML reports them.

    The GPUs are their numbers on the host or their UUIDs, as in ``CUDA_VISIBLE_DEVICES``.

    Examples
    --------
    >>> import os
    >>> usage = UsageMeter(os.getpid()).measure()
    >>> usage.processor > 0, usage.memory > 0, usage.gpus
    (True, True, ())
    """

    def __init__(self, pid: int, gpus: Sequence[str] = ()) -> None:
        self._pid = pid
        self._gpus = _open_gpus(gpus) if gpus else []

    def measure(self) -> NodeUsage:
        """Return the present use; zeros for a process that has ended."""
        processor, memory = 0.0, 0
        processes: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            leader = psutil.Process(self._pid)
            processes = [leader, *leader.children(recursive=True)]
        for process in processes:
            with suppress(psutil.Error), process.oneshot():  # one that has ended meanwhile
                times = process.cpu_times()
                processor += times.user + times.system
                memory += process.memory_info().rss
        return NodeUsage(time.monotonic(), processor, memory, tuple(self._gpu_usage()))

    def _gpu_usage(self) -> list[GpuUsage]:
        found = []
        for address, nvml, handle in self._gpus:
            with suppress(nvml.NVMLError):  # a GPU that has failed is no reason to end the node
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                share = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                found.append(GpuUsage(address, share, int(memory.used), int(memory.total)))
        return found


def _open_gpus(addresses: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """Return NVML and its handle of each GPU that it finds, with the GPU's address."""
    try:
        import pynvml
    except ImportError:
        return []
    handles = []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for address in addresses:
            with suppress(pynvml.NVMLError, ValueError):
                by_number = address.isdecimal()
                handle = (
                    pynvml.nvmlDeviceGetHandleByIndex(int(address))
                    if by_number
                    else pynvml.nvmlDeviceGetHandleByUUID(address)
                )
                handles.append((address, pynvml, handle))
    return handles
